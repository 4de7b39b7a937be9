-- What the log tells of every incarnation of every learner. Times are Unix seconds on the writers' clocks; NULL: not in
-- the log.

-- The facts about incarnations, besides their steps.
CREATE OR REPLACE TEMP TABLE about AS
SELECT f.* EXCLUDE (learner, incarnation), who FROM (
    SELECT position, t, kind, incarnation AS told_by,
        coalesce(fact->>'$.learner', fact->>'$.target', writer) AS learner,
        coalesce((fact->>'$.incarnation')::BIGINT, incarnation) AS incarnation,
        CASE kind WHEN 'PhaseEntered' THEN fact->>'$.phase' END AS phase, fact->>'$.reason' AS reason
    FROM facts
    WHERE kind IN ('PhaseEntered', 'Resumed', 'LearnerRequested', 'LearnerStarted', 'LearnerAttached', 'LeaseExpired',
        'LeaseRenewed', 'LearnerFenced', 'LearnerLost', 'FaultInjected')
) f JOIN incarnations USING (learner, incarnation) WHERE learner <> 'syncer';

CREATE OR REPLACE TEMP TABLE phases AS
SELECT who, position, t, lead(t) OVER (PARTITION BY who ORDER BY position) AS until, phase
FROM about WHERE kind = 'PhaseEntered';

-- The injected faults. `ends`: the fault ends the process at once. `healed`: when the log says that it was.
CREATE OR REPLACE TEMP TABLE injected AS
SELECT i.* EXCLUDE (heals), who, fault_kind IN ('kill', 'wrong_config') AS ends,
    coalesce(healed, t + duration_s) AS until
FROM (
    SELECT *, CASE WHEN lead(heals) OVER acts THEN lead(t) OVER acts END AS healed,
        CASE WHEN lead(heals) OVER acts THEN lead(position) OVER acts END AS healed_at FROM (
        SELECT position, t, fault, fault_kind, target, incarnation, duration_s, false AS heals FROM FaultInjected
        UNION ALL SELECT position, t, fault, NULL, NULL, NULL, NULL, true FROM FaultHealed)
    WINDOW acts AS (PARTITION BY fault ORDER BY position)
) i JOIN incarnations n ON (n.learner, n.incarnation) = (i.target, i.incarnation);

-- When an incarnation had no lease: until it is renewed, also by attaching to a later epoch, which does not know that
-- it had expired. `until` NULL: to its end.
CREATE OR REPLACE TEMP TABLE expired AS
SELECT who, position, t, CASE WHEN lead(kind) OVER leases <> 'LeaseExpired' THEN lead(t) OVER leases END AS until
FROM (FROM about WHERE kind IN ('LeaseExpired', 'LeaseRenewed')
    UNION ALL FROM about WHERE kind = 'LearnerAttached'
    QUALIFY lag(told_by) OVER (PARTITION BY who ORDER BY position) <> told_by)
WINDOW leases AS (PARTITION BY who ORDER BY position) QUALIFY kind = 'LeaseExpired';

-- The incarnations. `over`: killed, drained, or stopped, where its end came after the run's and it had not failed; NULL:
-- it is not over.
-- `noticed`: when it had left, or else when the orchestrator, or the syncer, first considered it dead. `died`: the best
-- known time of a killed one's death: the kill, else the freeze in which it was given up (`suspension`), else its last
-- sign of life. `ended`: when it died or was told to stop. `heir`: its learner's next incarnation; `again`: when that was
-- requested.
CREATE OR REPLACE TEMP TABLE roster AS
WITH told AS (
    SELECT who,
        max_by(CASE kind WHEN 'LearnerRequested' THEN t END, position) AS requested,
        max_by(CASE kind WHEN 'LearnerStarted' THEN t END, position) AS started,
        min_by(CASE kind WHEN 'LearnerAttached' THEN t END, position) AS attached,
        min_by(CASE WHEN phase IS NOT NULL THEN t END, position) AS phased,
        min_by(CASE phase WHEN 'compiling' THEN t END, position) AS compiling,
        min_by(CASE phase WHEN 'joining' THEN t END, position) AS joining,
        min_by(CASE phase WHEN 'stepping' THEN t END, position) AS stepping,
        min_by(CASE phase WHEN 'draining' THEN t END, position) AS draining,
        min(CASE WHEN phase IN ('draining', 'stopped') THEN t END) AS left_at, bool_or(phase = 'stopped') AS stopped,
        max(CASE WHEN phase IS NOT NULL THEN t END) AS last_phase,
        max_by(CASE WHEN phase IS NOT NULL THEN {phase: phase, t: t} END, position) AS phase,
        min_by(CASE kind WHEN 'LearnerLost' THEN t END, position) AS lost,
        min_by(CASE kind WHEN 'LearnerFenced' THEN {t: t, reason: reason} END, position) AS fence,
        min_by(CASE WHEN kind IN ('LearnerLost', 'LearnerFenced') THEN
            {kind: kind, reason: reason, position: position} END, position) AS first
    FROM about GROUP BY who
), stepped AS (
    SELECT who, min_by(t - seconds, position) AS begun, max(t) AS stepped, count(*) AS steps,
        sum(tokens)::BIGINT AS tokens
    FROM steps GROUP BY who
), struck AS (
    SELECT who, list({position: position, kind: fault_kind, t: t, ends: ends, until: until} ORDER BY position) AS faults
    FROM injected GROUP BY who
), ends AS (
    SELECT list({position: position, ended: kind <> 'RunResumed'} ORDER BY position) AS ends
    FROM facts WHERE kind IN ('Finished', 'RunFinished', 'RunResumed')
), lives AS (
    SELECT *, fence.t AS fenced, CASE WHEN first IS NULL THEN NULL
            WHEN fence.reason IS DISTINCT FROM 'failed'
                AND list_filter(ends, lambda e: e.position < first.position)[-1].ended THEN 'stopped'
            WHEN first.kind = 'LearnerFenced' AND first.reason = 'drained' THEN 'drained' ELSE 'killed' END AS over,
        CASE WHEN over = 'drained' THEN fenced ELSE coalesce(lost, fenced) END AS noticed,
        list_filter(faults, lambda f: f.ends)[1] AS kill,
        CASE WHEN over = 'killed' AND kill IS NULL THEN list_filter(faults, lambda f: f.kind = 'freeze'
            AND noticed BETWEEN f.t AND f.until)[1] END AS suspension,
        CASE WHEN over = 'killed' THEN least(noticed, coalesce((kill).t, (suspension).t,
            greatest(last_phase, stepped, requested, started, attached))) END AS died
    FROM told FULL JOIN stepped USING (who) LEFT JOIN struck USING (who), ends
)
SELECT who, learner, incarnation, requested, started, attached, phased, compiling, joining, stepping, draining, left_at,
    coalesce(stopped, false) AS stopped, phase, begun, stepped, coalesce(steps, 0) AS steps,
    coalesce(tokens, 0) AS tokens, over, coalesce(fence.reason, '') AS reason, fenced, lost, noticed, kill, suspension,
    died, CASE WHEN over = 'killed' THEN died WHEN over IS NOT NULL THEN noticed END AS ended,
    lead(who) OVER incarnations AS heir, lead(coalesce(requested, started, phased, noticed)) OVER incarnations AS again
FROM lives JOIN incarnations USING (who)
WINDOW incarnations AS (PARTITION BY learner ORDER BY incarnation);

-- When an incarnation was suspended by a fault. A dead process is no longer suspended.
CREATE OR REPLACE TEMP TABLE frozen AS
SELECT who, i.position, i.t, CASE WHEN noticed > i.t THEN least(noticed, until) ELSE until END AS until
FROM injected i JOIN roster USING (who) WHERE fault_kind = 'freeze';

-- When each learner was wanted: the configured ones from the start, others since their pool was scaled up or, where no
-- pool is named, since they were first asked for; until their pool was scaled down.
CREATE OR REPLACE TEMP TABLE wanted AS
SELECT learner, part, position, CASE WHEN position >= 0 THEN t ELSE '-infinity' END AS t,
    coalesce(min(CASE WHEN NOT wanted THEN t END) OVER (told ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING),
        'infinity') AS until
FROM (
    SELECT unnest(learners) AS learner, generate_subscripts(learners, 1) AS part, -1 AS position, t, true AS wanted
    FROM (FROM SyncerStarted ORDER BY position LIMIT 1)
    UNION ALL SELECT unnest(added), generate_subscripts(added, 1), position, t, true FROM PoolScaled
    UNION ALL SELECT unnest(removed), 0, position, t, false FROM PoolScaled
    UNION ALL SELECT learner, 0, min(position), min_by(t, position), true FROM LearnerRequested GROUP BY learner)
WINDOW told AS (PARTITION BY learner ORDER BY position)
QUALIFY wanted AND lag(wanted) OVER told IS NOT TRUE;
