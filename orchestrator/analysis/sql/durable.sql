-- Every later epoch of the syncer starts from all commits that an earlier one announced. A commit that was neither
-- announced nor recovered is not missed here: the journal is not in the log.

-- What was announced before an epoch opened its first step, or committed, or the next epoch started: the newest version
-- of each fragment, and the count of tokens. `complete`: it has opened a step, so the log has all of that.
CREATE OR REPLACE TEMP TABLE restarts AS
WITH begun AS (
    SELECT r.told_by, min(b.position) FILTER (opens) AS opens, min(b.position) AS acts FROM rules r JOIN (
        SELECT told_by, position, true AS opens FROM opened UNION ALL SELECT epoch, position, false FROM commits
    ) b ON b.told_by = r.told_by AND b.position > r.position GROUP BY ALL
)
SELECT r.*, len(versions) <> count AS mute, coalesce(opens = until, false) AS complete FROM (
    SELECT r.*, opens, least(acts, lead(position) OVER (ORDER BY position), 1::BIGINT << 62) AS until
    FROM rules r LEFT JOIN begun USING (told_by)
) r WHERE told_by > (SELECT min_by(incarnation, position) FROM facts WHERE writer = 'syncer');

-- check: durable.restarts
-- claim: a new epoch starts from every commit that was announced before, and no other
-- checked: restarts = FROM restarts
-- idle: the syncer never restarted = FROM rules
WITH announced AS (
    SELECT position, fragment, max(syncer_step) OVER (PARTITION BY fragment ORDER BY position) AS had,
        max(tokens_committed) OVER (ORDER BY position) AS tokens FROM commits
)
SELECT r.position, format('epoch {} starts from version {} of fragment {}, version {} was announced', told_by, version,
    r.fragment, coalesce(had, 0)) AS told, false AS unknown
FROM (
    SELECT *, unnest(versions) AS version, unnest(range(count)) AS fragment FROM restarts WHERE NOT mute
) r ASOF LEFT JOIN announced a ON a.fragment = r.fragment AND a.position < r.until
WHERE version < coalesce(had, 0) OR (complete AND version > coalesce(had, 0))
UNION ALL
SELECT r.position, format('epoch {} starts from {} committed tokens, {} were announced', told_by, tokens_committed,
    coalesce(tokens, 0)), false
FROM restarts r ASOF LEFT JOIN announced a ON a.position < r.until
WHERE NOT mute AND (tokens_committed < coalesce(tokens, 0) OR (complete AND tokens_committed > coalesce(tokens, 0)))
UNION ALL
SELECT position, format('epoch {} does not say what it starts from', told_by), true FROM restarts WHERE mute;

-- The records that a later epoch tells again; `same`: in the same words.
CREATE OR REPLACE TEMP TABLE repeated AS
WITH records AS (
    SELECT position, told_by, format('the commit of syncer step {}', syncer_step) AS name, [syncer_step] AS id,
        (SELECT list((who, step, base_step, steps, tokens, weight, digest, processed, age) ORDER BY part)
            FROM contributions_told p WHERE p.position = c.position)::VARCHAR || (fragment, epoch, base_version, live, digest, norm,
            tokens_committed, quorum_s, grace_s, sync_s, reason)::VARCHAR AS content
    FROM commits_told c
    WHERE syncer_step IN (SELECT syncer_step FROM commits_told GROUP BY ALL HAVING min(told_by) < max(told_by))
    UNION ALL
    SELECT position, incarnation, format('span {} of {} {}', fact->>'$.span', fact->>'$.learner', fact->>'$.incarnation'),
        [(fact->>'$.span')::BIGINT, CASE WHEN kind <> 'SpanGranted' THEN (fact->>'$.start')::BIGINT END], kind || fact
    FROM facts WHERE kind IN ('SpanGranted', 'SpanReturned', 'SetAside') AND (SELECT count(*) FROM rules) > 1
)
SELECT position, told_by, name, first_value(told_by) OVER w AS first, content = first_value(content) OVER w AS same
FROM records WINDOW w AS (PARTITION BY name, id ORDER BY position) QUALIFY told_by > first;

-- check: durable.records
-- claim: what two epochs say of one commit, grant or return, or of the end, is the same word for word
-- checked: repeated records = FROM (SELECT position FROM repeated UNION ALL (SELECT position FROM finishes ORDER BY position OFFSET 1))
-- idle: no epoch had to say anything again = FROM facts
SELECT position, format('epoch {} says {} otherwise than epoch {}', told_by, name, first) AS told
FROM repeated WHERE NOT same
UNION ALL
SELECT position, format('epoch {} ends with other tokens than the one before did', told_by) FROM finishes
QUALIFY tokens_committed <> lag(tokens_committed) OVER (PARTITION BY resumptions ORDER BY position);
