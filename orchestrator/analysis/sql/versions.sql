-- Each fragment has one chain of versions, one commit a round, and every counter only rises. A version is the syncer
-- step of its commit; version 0 is the initial parameters.

-- check: versions.chain
-- claim: each version of a fragment is made from the one before it, one round later
-- checked: commits = FROM commits
SELECT position, format('fragment {} at syncer step {} was made from version {}, its last one is {}', fragment,
    syncer_step, base_version, version_before) AS told
FROM chained WHERE base_version <> version_before
UNION ALL
SELECT c.position, format('fragment {} at syncer step {} comes {} steps after version {}, a round is {}', fragment,
    syncer_step, syncer_step - version_before, version_before, round_steps)
FROM chained c JOIN rules USING (told_by) WHERE version_before > 0 AND syncer_step - version_before <> round_steps;

-- check: versions.order
-- claim: commits follow the syncer steps, and each commits the fragment that its step was opened for
-- checked: commits = FROM commits
SELECT position, format('syncer step {} committed after {}', syncer_step, step_before) AS told
FROM chained WHERE syncer_step <= step_before
UNION ALL
SELECT position, format('syncer step {} committed fragment {}, which was not due', syncer_step, fragment)
FROM chained WHERE opened_at IS NOT NULL AND due IS DISTINCT FROM fragment;

-- check: versions.adopted
-- claim: a learner adopts only committed versions, and never an older one
-- checked: adoptions = FROM adoptions
SELECT position, format('{} {} adopted version {} of fragment {} after version {}', learner, incarnation, version,
    fragment, held) AS told
FROM (
    SELECT *, lag(version) OVER (PARTITION BY who, fragment ORDER BY position) AS held FROM adoptions
) JOIN incarnations USING (who) WHERE version < held
UNION ALL
SELECT a.position, format('{} {} adopted version {} of fragment {}, which was never committed', learner, incarnation,
    version, a.fragment)
FROM adoptions a LEFT JOIN (SELECT fragment, syncer_step, min(position) AS position FROM commits GROUP BY ALL) c
    ON c.fragment = a.fragment AND c.syncer_step = a.version
JOIN incarnations USING (who) WHERE version <> 0 AND coalesce(c.position > a.position, true);

-- The next epoch opens again what the last left open. Where facts were lost, a step may come later than the next one.
-- check: versions.clocks
-- claim: learner steps and syncer steps come one by one, and no count of steps or tokens ever falls
-- checked: steps = FROM (SELECT 1 FROM steps UNION ALL SELECT 1 FROM opened)
SELECT position, format('epoch {} opened syncer step {} after {}', told_by, syncer_step, before) AS told FROM (
    SELECT *, lag(syncer_step) OVER w AS before, lag(told_by) OVER w AS epoch FROM opened WINDOW w AS (ORDER BY position)
) WHERE told_by = epoch AND syncer_step <> before + 1
UNION ALL
SELECT position, format('the count of committed tokens falls from {} to {} at syncer step {}', tokens_before,
    tokens_committed, syncer_step) FROM chained WHERE tokens_committed < tokens_before
UNION ALL
SELECT position, format('{} {} finished step {} after step {}', learner, incarnation, first, before)
FROM stretches JOIN incarnations USING (who)
WHERE first <> before + 1 AND (first <= before OR who NOT IN (FROM incomplete))
UNION ALL
SELECT a.position, CASE WHEN after_step < before
    THEN format('{} {} adopted after step {}, and before that after step {}', learner, incarnation, after_step, before)
    ELSE format('{} {} adopted after step {}, logged after step {}', learner, incarnation, after_step, step) END
FROM (SELECT *, lag(after_step) OVER (PARTITION BY who ORDER BY position) AS before FROM adoptions) a
ASOF LEFT JOIN steps s ON s.who = a.who AND s.position < a.position JOIN incarnations i ON i.who = a.who
WHERE after_step < before OR (after_step <> step AND a.who NOT IN (FROM incomplete))
UNION ALL
SELECT place, format('{} {} was read at step {} after step {}', learner, incarnation, step, before)
FROM (SELECT *, lag(step) OVER (PARTITION BY who, fragment ORDER BY place) AS before FROM contributions
    SEMI JOIN (FROM covers WHERE falls) USING (who, fragment)) WHERE step < before
UNION ALL
SELECT f.position, format('the run finished at syncer step {}, step {} had committed', f.step, c.step)
FROM (SELECT resumptions, max(position) AS position, min(syncer_step) AS step FROM finishes GROUP BY resumptions) f
JOIN (SELECT resumptions, max_by(syncer_step, c.position) AS step FROM commits c JOIN rules USING (told_by) GROUP BY resumptions) c
    USING (resumptions)
WHERE f.step < c.step;
