-- Whose lanes the report and the live page draw, and what struck them. Times are Unix seconds.

-- The incarnations that are drawn: the newest 1,000, of the learners that were wanted first.
CREATE OR REPLACE TEMP TABLE drawn AS
WITH places AS (SELECT learner, min({position: position, part: part}) AS place FROM wanted GROUP BY learner)
SELECT who, learner, incarnation, requested, begun, over, died, noticed, again, reason
FROM roster LEFT JOIN places USING (learner)
QUALIFY row_number() OVER (ORDER BY coalesce(requested, begun, attached) DESC NULLS LAST) <= 1000
ORDER BY place NULLS LAST, learner, incarnation;

-- The newest injected faults: target, when, kind, and when it was healed.
CREATE OR REPLACE TEMP TABLE struck_at AS
SELECT target, f.t, fault_kind, h.t AS healed
FROM FaultInjected f LEFT JOIN (SELECT fault, max_by(t, position) AS t FROM FaultHealed GROUP BY fault) h USING (fault)
ORDER BY position DESC LIMIT 1024;
