-- The log has all that a replay of every commit needs: each contributing incarnation's steps without a gap, its initial
-- state, and digests to compare with. A donor that died may not have sent its last facts: what is then missing is
-- unknown, and so are steps whose facts were lost. Only a replay can show equal bits.

CREATE OR REPLACE TEMP TABLE ranges AS
SELECT who, min_by(first, position) AS began, max(last) AS newest,
    least(min(before) FILTER (first <> before + 1), max_by(last, position)) AS whole
FROM stretches GROUP BY who;

CREATE OR REPLACE TEMP TABLE taken AS SELECT who, fragment, min(after_step) AS after FROM adoptions GROUP BY ALL;

-- The contributing incarnations: the first step that each must have, and what it says of its initial state. With a
-- peer's state steps begin at 1, else right after the first adoption: later in strict overlap.
CREATE OR REPLACE TEMP TABLE starts AS
SELECT c.who, c.position, c.learner, c.incarnation, began, whole, l.who IS NOT NULL AS gone,
    coalesce(g.who, a.who, l.who) IS NOT NULL AS known, source = 'peer' AS peer,
    CASE WHEN peer OR after IS NULL THEN 1 ELSE after + 1 END AS first,
    donor, donor_incarnation, donor_step, digest, bytes, versions
FROM (SELECT who, learner, incarnation, min(position) AS position FROM contributions GROUP BY ALL) c
LEFT JOIN ranges g USING (who) LEFT JOIN incomplete l USING (who)
LEFT JOIN (SELECT who, min(after) AS after FROM taken GROUP BY who) a USING (who)
LEFT JOIN (
    FROM StateReceived
    WHERE position IN (SELECT max(position) FROM facts WHERE kind = 'StateReceived' GROUP BY writer, incarnation)
) r ON r.told_in = c.learner AND r.told_by = c.incarnation;

-- check: replayable.steps
-- claim: every step that a commit holds, and every step of its incarnation before that, is in the log
-- checked: contributing incarnations = FROM starts WHERE known
SELECT position, format('step {} of {} {} is in a commit, and not in the log', missing, learner, incarnation) AS told,
    gone AS unknown
FROM (
    SELECT place AS position, least(coalesce(whole, 0) + 1, step) AS missing, learner, incarnation, gone
    FROM contributions c JOIN (SELECT who, whole, gone FROM starts) USING (who) WHERE step > coalesce(whole, -1)
    UNION ALL
    SELECT position, first, learner, incarnation, gone FROM starts WHERE known AND began IS DISTINCT FROM first
);

-- A gift is known by its content: the donor may have given the same joiner several. A donor's state may also come from
-- a checkpoint, whose seal has been checked.
-- check: replayable.states
-- claim: every contributing incarnation starts from what the syncer or a donor gave
-- checked: contributing incarnations = FROM starts WHERE known
WITH gifts AS (
    SELECT s.*, d.position AS given, d.step AS gave_step, d.digest AS gave_digest, d.bytes AS gave_bytes,
        d.versions AS gave_versions,
        (donor_step, s.digest, s.bytes, s.versions) = (d.step, d.digest, d.bytes, d.versions) AS same
    FROM starts s LEFT JOIN Donated d ON d.told_in = donor AND d.told_by = donor_incarnation
        AND d.joiner = s.learner AND d.joiner_incarnation = s.incarnation
    WHERE peer AND known
), given AS (
    SELECT g.*, coalesce(bool_or(same) OVER (PARTITION BY g.who), false) OR saved IS NOT NULL AS found,
        coalesce(newest >= donor_step, false) AS stepped
    FROM gifts g LEFT JOIN (
        SELECT told_in AS donor, told_by AS donor_incarnation, step AS donor_step, true AS saved FROM StateSaved GROUP BY ALL
    ) USING (donor, donor_incarnation, donor_step)
    LEFT JOIN (
        SELECT learner AS donor, incarnation AS donor_incarnation, newest FROM ranges JOIN incarnations USING (who)
    ) USING (donor, donor_incarnation)
    QUALIFY row_number() OVER (PARTITION BY g.who ORDER BY given DESC) = 1
)
SELECT position, format('{} {} stepped before it had fragment {} from anyone', learner, incarnation, f.fragment) AS told,
    gone AS unknown
FROM starts s CROSS JOIN (SELECT unnest(range(count)) AS fragment FROM rules WHERE told_by = newest) f
LEFT JOIN taken t ON t.who = s.who AND t.fragment = f.fragment
WHERE known AND peer IS DISTINCT FROM true AND coalesce(after >= began, true)
UNION ALL
SELECT position, format('{} {} started from {} {} of {} {}, which gave {}', learner, incarnation, what, got, donor,
    donor_incarnation, gave), false
FROM given, LATERAL (VALUES ('step', donor_step::VARCHAR, gave_step::VARCHAR), ('digest', digest, gave_digest),
    ('bytes', bytes::VARCHAR, gave_bytes::VARCHAR), ('versions', format('({})', array_to_string(versions, ', ')),
    format('({})', array_to_string(gave_versions, ', ')))) AS told(what, got, gave)
WHERE NOT found AND given IS NOT NULL AND got <> gave
UNION ALL
SELECT position, CASE WHEN NOT found
    THEN format('{} {} started from {}, which does not say that it gave', learner, incarnation, donor)
    ELSE format('{} {} started from step {} of {} {}, which is not in the log', learner, incarnation, donor_step, donor,
        donor_incarnation) END, true
FROM given WHERE NOT CASE WHEN found THEN stepped ELSE given IS NOT NULL END;

-- A simulated log may have no digests: a replay has then nothing to compare with.
CREATE OR REPLACE TEMP TABLE undigested AS
SELECT (SELECT count(*) FROM commits WHERE digest <> '') AS commits,
    (SELECT count(*) FROM contributions WHERE digest <> '') AS merges;

-- check: replayable.digests
-- claim: commits and contributions carry the digests of their numbers
-- checked: digests = FROM (SELECT position FROM commits, undigested u WHERE u.commits > 0 UNION ALL SELECT position FROM contributions, undigested u WHERE u.merges > 0)
SELECT position, format('the commit of syncer step {} has no digest', syncer_step) AS told
FROM commits, undigested u WHERE digest = '' AND u.commits > 0
UNION ALL
SELECT position, format('the contribution of {} {} at syncer step {} has no digest', learner, incarnation, syncer_step)
FROM contributions, undigested u WHERE digest = '' AND u.merges > 0;
