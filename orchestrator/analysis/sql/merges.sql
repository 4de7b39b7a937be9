-- What went into a commit, how often, and with what weight.

-- The settings of a contribution's epoch; the weights of an epoch that tells none are by the newest one's rule. Of a
-- contribution on an older base at most H steps count, divided by 1 + age.
CREATE OR REPLACE TEMP TABLE shares AS
SELECT c.position, c.part, c.weight, CASE rule WHEN 'paper' THEN tokens::DOUBLE * tokens / greatest(steps, 1)
        WHEN 'tokens' THEN tokens ELSE 1 END
    * CASE WHEN age <= 0 THEN 1 WHEN rule = 'equal' THEN 1 / (1 + age)
        ELSE least(1, coalesce(round_steps, steps) / greatest(steps, 1)) / (1 + age) END AS due
FROM contributions c LEFT JOIN (
    SELECT DISTINCT c.told_by, r.round_steps, coalesce(r.weights, n.weights, 'paper') AS rule
    FROM commits c LEFT JOIN rules r USING (told_by) LEFT JOIN rules n ON n.told_by = n.newest
) USING (told_by);

CREATE OR REPLACE TEMP TABLE taking AS SELECT position, learner, count(*) AS times FROM contributions GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE quorums AS
SELECT c.*, coalesce(learners, 0) AS learners, coalesce(participants, 0)::BIGINT AS participants
FROM chained c LEFT JOIN (
    SELECT position, count(*) AS learners, sum(times) AS participants FROM taking GROUP BY position
) USING (position);

-- check: merges.once
-- claim: a learner merges at most once into a commit
-- checked: contributions = FROM contributions
SELECT position, format('{} merged {} times at syncer step {}', learner, times, syncer_step) AS told
FROM taking JOIN commits USING (position) WHERE times > 1;

-- check: merges.ranges
-- claim: no step merges twice into the same fragment
-- checked: contributions = FROM contributions
SELECT place AS position, format('steps of {} after {} merged twice into it', named(c), c.base_step) AS told
FROM (FROM covers WHERE base_step < before) JOIN contributions c USING (place);

-- check: merges.weights
-- claim: weights are by the rule of sync.weights, normalised
-- checked: commits = FROM commits
WITH sums AS (SELECT position, sum(weight) AS given, sum(due) AS total FROM shares GROUP BY position),
    empty AS (SELECT DISTINCT position, syncer_step FROM contributions WHERE steps < 1 OR tokens < 1)
SELECT position, format('the weights at syncer step {} include a contribution without steps or tokens', syncer_step)
    AS told FROM empty
UNION ALL
SELECT position, format('the weights at syncer step {} sum to {}', syncer_step, coalesce(given, 0))
FROM commits c LEFT JOIN sums USING (position) ANTI JOIN empty USING (position)
WHERE abs(coalesce(given, 0) - 1) > 1e-9
UNION ALL
SELECT place, format('the weights at syncer step {}: {} has {}, due is {}', syncer_step, learner, s.weight, due / total)
FROM shares s JOIN sums USING (position) JOIN contributions c USING (position, part) ANTI JOIN empty USING (position)
WHERE abs(s.weight - due / total) > 1e-9;

-- check: merges.quorum
-- claim: nothing commits below the quorum
-- checked: commits with rules = FROM commits SEMI JOIN rules USING (told_by)
SELECT c.position, format('syncer step {} committed with {} participants, the quorum is {}', syncer_step, participants,
    quorum) AS told
FROM quorums c JOIN rules USING (told_by) WHERE learners < quorum;

-- A participant is live when it is read, and a live learner has attached before.
-- check: merges.live
-- claim: as many learners were live as took part, at least, and no more than had attached
-- checked: commits = FROM commits
SELECT c.position, format('syncer step {} tells of {} live learners, {} took part and {} had ever attached', syncer_step,
    live, participants, coalesce(known, 0)) AS told
FROM quorums c ASOF LEFT JOIN (
    SELECT min(attached_at) AS position, row_number() OVER (ORDER BY min(attached_at)) AS known
    FROM attached GROUP BY learner
) a ON a.position < c.position WHERE NOT live BETWEEN participants AND coalesce(known, 0);

-- What the learner's own facts say of its range: all of them before the commit. Where facts of its incarnation were
-- lost, what is known may not say more than the contribution counts.
-- check: merges.counters
-- claim: a contribution's counters are the steps that its learner finished in its range
-- checked: contributions = FROM contributions
SELECT place AS position, format('{} counts {} steps and {} tokens in ({}, {}], the learner said {} and {}', named(c), steps,
    tokens, base_step, step, count, said) AS told
FROM (
    SELECT c.*, steps_to(c.step, s) > v.count AS late, greatest(0, steps_to(c.step, s) - base_count) AS count,
        greatest(0, tokens_to(c.step, s) - base_upto)::BIGINT AS said
    FROM (FROM covers WHERE last < step OR steps <> step - base_step OR steps <> count - base_count
        OR tokens <> upto - base_upto) v JOIN contributions c USING (place)
    ASOF LEFT JOIN (FROM stretches WHERE count > 0) s ON s.who = c.who AND s.after < c.step
) c
WHERE steps <> step - base_step OR ((steps <> count OR tokens <> said OR late)
    AND NOT (who IN (FROM incomplete) AND (count < steps OR late) AND said <= tokens));

-- The newest adoption before the last step read is of the version merged onto, or of one as many rounds older as the
-- contribution's age; and counting began there. With rebase counting may have begun earlier: what accrued since the
-- read is kept; and a learner that no longer steps may be read again after it has rebased, at the step it was read at.
-- An adoption whose fact was lost is not missed. Most contributions follow the adoption that they count from; `unclear`
-- are the others.
-- check: merges.current
-- claim: only contributions based on a version in the window merge, with its age, counted from its adoption
-- checked: contributions = FROM contributions
WITH told AS (
    SELECT who, fragment, after_step AS step, 1 AS adopts, position::DOUBLE AS place, version, after_step AS base_step
    FROM adoptions
    UNION ALL SELECT who, fragment, step, 0, place, CASE WHEN age = 0 THEN base_version END, base_step FROM contributions
), dated AS (
    SELECT *, lag(adopts) OVER w = 1 AND lag(version) OVER w = version AND lag(base_step) OVER w = base_step AS clear
    FROM told WINDOW w AS (PARTITION BY who, fragment ORDER BY step, adopts, place)
), unclear AS (FROM dated WHERE adopts = 0 AND clear IS NOT TRUE)
SELECT place AS position, CASE WHEN beyond THEN format('{} has a base {} rounds behind', named(c), age)
    WHEN version IS NULL THEN format('{} had adopted no version before step {}', named(c), step)
    WHEN version <> wanted THEN format('{} was based on version {}, not {}', named(c), version, wanted)
    ELSE format('{} counts from {}, its base came after {}', named(c), base_step, after_step) END AS told
FROM (
    SELECT c.*, coalesce(age < 0 OR age > base_window, age < 0) AS beyond,
        CASE WHEN age > 0 THEN greatest(base_version - age * coalesce(round_steps, 1::BIGINT << 40), 0) ELSE base_version END AS wanted
    FROM contributions c SEMI JOIN unclear USING (place)
    LEFT JOIN rules r USING (told_by)
) c ASOF LEFT JOIN (
    SELECT who, fragment, after_step, max_by(version, position) AS version, max_by(mode, position) AS mode
    FROM adoptions SEMI JOIN unclear USING (who, fragment) GROUP BY ALL
) a ON a.who = c.who AND a.fragment = c.fragment AND a.after_step < c.step
WHERE beyond OR (c.who NOT IN (FROM incomplete)
    AND (version IS DISTINCT FROM wanted OR base_step > after_step OR (mode <> 'rebase' AND base_step <> after_step))
    AND (c.who, c.fragment, wanted, c.step) NOT IN (
        SELECT (who, fragment, version, after_step) FROM adoptions WHERE mode = 'rebase'));

-- check: merges.closed
-- claim: a syncer step commits after it was opened, and none after the end
-- checked: commits = FROM commits
SELECT c.position, CASE WHEN f.position IS NOT NULL
    THEN format('syncer step {} committed after the end at step {}', c.syncer_step, f.syncer_step)
    ELSE format('syncer step {} committed without having been opened', c.syncer_step) END AS told
FROM chained c LEFT JOIN (
    SELECT rules.told_by, min(f.position) AS position, min_by(syncer_step, f.position) AS syncer_step
    FROM rules JOIN finishes f USING (resumptions) GROUP BY rules.told_by
) f ON f.told_by = c.told_by AND f.position < c.position
WHERE f.position IS NOT NULL OR opened_at IS NULL;

-- Nothing that is not a number reaches the global parameters. A learner's own loss may diverge: its contributions are
-- then refused. The norm of a merged update has no bound.
-- check: finite.commits
-- claim: norms (of whatever size), weights and held-out losses are finite, norms and weights not negative
-- checked: commits = FROM commits
SELECT position, format('syncer step {}: the norm is {}', syncer_step, norm) AS told
FROM commits WHERE NOT (norm >= 0 AND norm < 'inf')
UNION ALL
SELECT place, format('syncer step {}: the weight of {} is {}', syncer_step, learner, weight)
FROM contributions WHERE NOT (weight >= 0 AND weight < 'inf')
UNION ALL
SELECT position, format('the held-out loss at syncer step {} is {}', syncer_step, loss)
FROM Evaluated WHERE NOT isfinite(loss);
