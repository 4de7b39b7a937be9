-- The token books: the fate of every token that was processed. The unit is one step of one incarnation.

-- A step counts where it goes beyond all that the incarnation finished before it. `upto`, `place`: tokens
-- and steps so far.
CREATE OR REPLACE TEMP TABLE counted AS
SELECT who, step, position, tokens, sum(tokens) OVER so_far::BIGINT AS upto, row_number() OVER so_far AS place
FROM (
    SELECT who, step, position, tokens FROM steps
    QUALIFY step > coalesce(max(step) OVER (PARTITION BY who ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING
        AND 1 PRECEDING), -1)
)
WINDOW so_far AS (PARTITION BY who ORDER BY step ROWS UNBOUNDED PRECEDING);

-- A contribution covers the steps (base_step, last]: those up to its step that the log has before its commit.
CREATE OR REPLACE TEMP TABLE covers AS
SELECT c.position, c.part, c.who, c.fragment, c.base_step, c.step, c.steps, c.tokens, 
    least(c.step, coalesce(s.step, -1)) AS last
FROM contributions c ASOF LEFT JOIN counted s ON s.who = c.who AND s.position < c.position;

-- Of the contributions that reach a step or more: the oldest base, and the first commit with its base, in one
-- number.
CREATE OR REPLACE TEMP TABLE reached AS
SELECT who, last, min(base) OVER later AS base, min(first) OVER later AS first
FROM (
    SELECT who, last, min(base_step) AS base, min((position << 28) + base_step) AS first
    FROM covers WHERE last > base_step GROUP BY ALL
)
WINDOW later AS (PARTITION BY who ORDER BY last DESC);

-- The incarnations of which facts were lost, with the last step before each loss and the next one (which may be none).
CREATE OR REPLACE TEMP TABLE losses AS
SELECT DISTINCT i.who, coalesce(s.step, 0) AS after, n.step AS next, n.tokens
FROM (
    SELECT position, fact->>'$.writer' AS learner, (fact->>'$.incarnation')::BIGINT AS incarnation
    FROM facts WHERE kind = 'FactsLost'
) l JOIN incarnations i USING (learner, incarnation)
ASOF LEFT JOIN counted s ON s.who = i.who AND s.position < l.position
ASOF LEFT JOIN counted n ON n.who = i.who AND n.step > coalesce(s.step, 0);

-- Contributions that claim steps which the log lacks, with the tokens that they count beyond the known ones.
CREATE OR REPLACE TEMP TABLE claims AS
SELECT c.*, row_number() OVER (PARTITION BY who ORDER BY position, part) AS n FROM (
    SELECT c.who, c.position, c.part, c.fragment, c.base_step, c.step, c.steps - coalesce(l.place,
        0) + coalesce(f.place, 0) AS steps,
        c.tokens - coalesce(l.upto, 0) + coalesce(f.upto, 0) AS tokens
    FROM (FROM covers SEMI JOIN losses USING (who)) c
    ASOF LEFT JOIN counted f ON f.who = c.who AND f.step <= c.base_step
    ASOF LEFT JOIN counted l ON l.who = c.who AND l.step <= greatest(c.last, c.base_step)
) c WHERE steps > 0;

-- Steps missing between two known ones count with the tokens of the next known one; after the last known one, those
-- that
-- contributions claim. A contribution that covers lost steps says their tokens: what it counts beyond what is known.
-- From
-- then on they are committed with that number; `first`: where; otherwise they are unknown.
CREATE OR REPLACE TEMP TABLE lost AS
WITH RECURSIVE missing AS (
    SELECT DISTINCT who, unnest(range(after + 1, next)) AS step, tokens FROM losses WHERE next IS NOT NULL
    UNION SELECT who, unnest(range(after + 1, (SELECT max(c.step) + 1 FROM claims c WHERE c.who = losses.who))), 0
    FROM losses WHERE next IS NULL
), told AS (
    SELECT who, 0 AS n, list({'step': step, 'tokens': tokens, 'first': NULL::BIGINT} ORDER BY step) AS steps
    FROM missing GROUP BY who
    UNION ALL
    SELECT who, n, list_transform(steps, lambda x: CASE WHEN list_contains(fresh, x.step) THEN {
        'step': x.step,
        'tokens': counted // len(fresh) + (list_position(fresh, x.step) <= counted % len(fresh))::BIGINT,
        'first': position
    } ELSE x END)
    FROM (
        SELECT t.who, c.n, t.steps, c.position,
            list_transform(list_filter(t.steps, lambda x: x.step > c.base_step AND x.step <= c.step
                AND x.first IS NULL), lambda x: x.step) AS fresh,
            greatest(0, c.tokens - coalesce(list_sum(list_transform(list_filter(t.steps,
                lambda x: x.step > c.base_step AND x.step <= c.step
                    AND x.first IS NOT NULL), lambda x: x.tokens)), 0))::BIGINT AS counted
        FROM told t JOIN claims c ON c.who = t.who AND c.n = t.n + 1
    )
)
SELECT who, learner, unnest(arg_max(steps, n), recursive := true)
FROM told JOIN incarnations USING (who) GROUP BY who, learner;

-- Up to which step each incarnation's adoptions overwrote each fragment.
CREATE OR REPLACE TEMP TABLE overwritten AS
SELECT who, fragment, max(upto) AS upto FROM (
    SELECT who, fragment, after_step AS upto FROM adoptions WHERE mode IN ('bootstrap', 'overwrite')
    -- The adoption that a contribution counts from may be lost.
    UNION ALL SELECT who, fragment, base_step FROM covers SEMI JOIN losses USING (who)
) WHERE fragment < (SELECT max(count) FROM rules) GROUP BY ALL;

-- How each incarnation ended: the first word counts, and of the syncer's words the first.
-- A fence binds the epoch that set it: when a later epoch lets the incarnation attach, it has not ended. Nor has it
-- when
-- it ended with a run that was resumed with exactly its state.
CREATE OR REPLACE TEMP TABLE ends AS
WITH told AS (
    SELECT position, kind, incarnation AS told_by, fact->>'$.learner' AS learner,
        (fact->>'$.incarnation')::BIGINT AS incarnation, fact->>'$.reason' = 'drained' AS drained,
        (fact->>'$.step')::BIGINT AS aside, (fact->'$.exact')::VARCHAR[] AS exact,
        CASE WHEN kind IN ('Finished', 'RunFinished') THEN true WHEN kind = 'RunResumed' THEN false END AS over
    FROM facts WHERE kind IN (
        'LearnerAttached', 'LearnerFenced', 'LearnerLost', 'SetAside', 'Finished', 'RunFinished', 'RunResumed')
), run AS (
    SELECT * EXCLUDE (over, exact), coalesce(last_value(over IGNORE NULLS) OVER before, false) AS over,
        first_value(if(exact IS NULL, NULL, {'exact': exact, 'position': position}) IGNORE NULLS) OVER after AS next,
        kind = 'LearnerAttached' AND max(told_by) FILTER (kind = 'LearnerFenced') OVER earlier
            >= coalesce(max(told_by) FILTER (kind = 'LearnerAttached') OVER earlier, 0) AND told_by >
            coalesce(max(told_by) FILTER (kind = 'LearnerAttached') OVER (same ROWS BETWEEN UNBOUNDED PRECEDING
                AND 1 PRECEDING), -1)
            AS attached
    FROM told
    WINDOW before AS (ORDER BY position ROWS UNBOUNDED PRECEDING),
        after AS (ORDER BY position ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING),
        same AS (PARTITION BY learner, incarnation ORDER BY position),
        earlier AS (PARTITION BY learner, incarnation ORDER BY told_by RANGE BETWEEN UNBOUNDED PRECEDING
            AND 1 PRECEDING)
), ended AS (
    SELECT *, kind IN ('LearnerFenced', 'LearnerLost') AND NOT (over
        AND coalesce(list_contains(next.exact, learner), false)
        AND incarnation = max(incarnation) FILTER (kind IN ('LearnerFenced', 'LearnerLost')) OVER (
            PARTITION BY learner ORDER BY next.position RANGE UNBOUNDED PRECEDING)) AS holds
    FROM run
    QUALIFY kind = 'SetAside' OR position > coalesce(max(position) FILTER (attached) OVER (PARTITION BY learner,
        incarnation), -1)
), fates AS (
    SELECT learner, incarnation, CASE WHEN arg_min(over, position) FILTER (holds) THEN 'run_ended'
        WHEN arg_min(drained, position) FILTER (holds AND kind = 'LearnerFenced') THEN 'drained'
        WHEN bool_or(holds) THEN 'killed' END AS fate, arg_max(aside, position) FILTER (kind = 'SetAside') AS aside
    FROM ended WHERE learner IS NOT NULL GROUP BY ALL
)
SELECT i.*, aside, upto,
    coalesce(fate, if((SELECT arg_max(over, position) FROM told), 'run_ended', 'in_flight')) AS fate
FROM incarnations i LEFT JOIN fates USING (learner, incarnation)
LEFT JOIN (
    SELECT who, min(upto) AS upto FROM overwritten GROUP BY who HAVING count(*) = (SELECT max(count) FROM rules)
) USING (who);

-- The fate of each step: committed, where a contribution that covers it merged into any fragment; or else overlap,
-- where
-- every fragment was overwritten after it; or else as its incarnation ended. `first`: the first commit that covers
-- it; -1 where
-- the first one to reach so far began after it.
CREATE OR REPLACE TEMP TABLE fates AS
SELECT s.who, e.learner, e.incarnation, s.step, s.position, t, seconds, waited_s, waited_for, s.tokens, span,
    CASE WHEN m.base < s.step THEN 'committed' WHEN s.step <= e.upto THEN 'overlap'
        WHEN s.step = e.aside THEN 'set_aside' ELSE e.fate END AS fate,
    CASE WHEN m.base < s.step THEN if(m.first % (1 << 28) < s.step, m.first >> 28, -1) END AS first
FROM steps s SEMI JOIN counted USING (position) JOIN ends e USING (who)
ASOF LEFT JOIN reached m ON s.who = m.who AND s.step <= m.last;

-- A refused contribution surely covered the steps that finished before its syncer step opened and after the last
-- overwriting adoption before the refusal. (Of a duplicate, the first copy was accepted.)
CREATE OR REPLACE TEMP TABLE refusals AS
WITH refused AS (
    SELECT r.position, i.who, r.fragment, if(r.reason = 'stale_base', r.reason, 'refused') AS fate, o.position
        AS opened
    FROM Refused r JOIN incarnations i USING (learner, incarnation)
    ASOF JOIN StepOpened o ON r.syncer_step = o.syncer_step AND r.position > o.position
    WHERE message = 'contribution' AND r.reason <> 'doubled' AND r.fragment < (SELECT max(count) FROM rules)
)
SELECT r.position, r.who, r.fragment, r.fate, s.step AS upto, coalesce(max(a.after_step), -1) AS based
FROM refused r ASOF JOIN counted s ON r.who = s.who AND s.position < r.opened
LEFT JOIN (FROM adoptions WHERE mode IN ('bootstrap', 'overwrite')) a
    ON a.who = r.who AND a.fragment = r.fragment AND a.position < r.position
GROUP BY ALL;

-- It is why such a step was overwritten unread: of several, the newest of the last fragment tells.
UPDATE fates SET fate = r.fate FROM (
    SELECT f.position, arg_max(r.fate, (r.fragment, r.position)) AS fate
    FROM fates f JOIN refusals r ON f.who = r.who AND f.step > r.based AND f.step <= r.upto
    WHERE f.fate = 'overlap' GROUP BY f.position
) r WHERE fates.position = r.position;

-- The tokens of each learner by fate. `processed` counts all that was said, by itself.
CREATE OR REPLACE TEMP TABLE ledger AS
SELECT learner, fate, sum(tokens)::BIGINT AS tokens FROM (
    SELECT learner, fate, sum(tokens) AS tokens FROM fates GROUP BY ALL
    UNION ALL SELECT learner, 'processed', sum(tokens) FROM (SELECT who, sum(tokens) AS tokens
        FROM steps GROUP BY who) JOIN incarnations USING (who) GROUP BY learner
    UNION ALL SELECT learner, unnest(['processed', if(first IS NULL, 'unknown', 'committed')]), tokens FROM lost
) GROUP BY ALL;

-- What each contribution adds to its own fragment: it commits the steps (base, last], and those since the step that
-- was
-- read before, (before, base], were overwritten. In the end (`part` is NULL) so were those that an adoption
-- overwrote, and
-- the `rest` is as the incarnation ended.
CREATE OR REPLACE TEMP TABLE parts AS
SELECT c.*, greatest(coalesce(l.upto, 0) - coalesce(b.upto, 0), 0) AS committed,
    coalesce(b.upto, 0) - coalesce(o.upto, 0) AS overlap, coalesce(b.upto, 0) AS upto
FROM (
    SELECT *, greatest(base_step, before) AS base FROM (
        SELECT who, fragment, part, step, last, base_step, coalesce(max(step) OVER (
            PARTITION BY who, fragment ORDER BY position, part ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), -1) AS before
        FROM (
            SELECT who, fragment, position, part, step, last, base_step FROM covers
            UNION ALL
            SELECT who, fragment, 1::BIGINT << 60, NULL, -1, -1, coalesce(o.upto, -1)
            FROM (SELECT DISTINCT who FROM counted) CROSS JOIN (SELECT unnest(range((SELECT max(count)
                FROM rules))) AS fragment)
            LEFT JOIN overwritten o USING (who, fragment)
        ) WHERE fragment < (SELECT max(count) FROM rules)
    )
) c
ASOF LEFT JOIN counted l ON l.who = c.who AND l.step <= c.last
ASOF LEFT JOIN counted b ON b.who = c.who AND b.step <= c.base
ASOF LEFT JOIN counted o ON o.who = c.who AND o.step <= c.before;

CREATE OR REPLACE TEMP TABLE tails AS
SELECT p.who, p.fragment, p.base AS wiped, e.fate, a.upto - p.upto AS rest, coalesce(s.tokens, 0) AS set_aside
FROM parts p JOIN ends e USING (who) JOIN (SELECT who, max(upto) AS upto FROM counted GROUP BY who) a USING (who)
LEFT JOIN counted s ON s.who = p.who AND s.step = e.aside AND s.step > p.base
WHERE p.part IS NULL;

-- The steps whose part of a fragment was overwritten unread because of a refusal, the newest for this fragment.
CREATE OR REPLACE TEMP TABLE unread AS
WITH steps AS (
    SELECT r.who, r.fragment, s.step, s.tokens, arg_max(r.fate, r.position) AS fate
    FROM refusals r JOIN counted s ON s.who = r.who AND s.step > r.based AND s.step <= r.upto GROUP BY ALL
)
SELECT s.fragment, s.fate, s.tokens FROM steps s JOIN tails t ON t.who = s.who AND t.fragment = s.fragment
ASOF LEFT JOIN (FROM parts WHERE step > before) p ON p.who = s.who AND p.fragment = s.fragment AND s.step <= p.step
WHERE s.step <= coalesce(p.base, t.wiped);

-- The tokens of each fragment by fate: was this token's part of this fragment committed?
CREATE OR REPLACE TEMP TABLE fragment_ledger AS
SELECT fragment, fate, sum(tokens)::BIGINT AS tokens FROM (
    SELECT fragment, 'committed' AS fate, sum(committed) AS tokens FROM parts GROUP BY ALL
    UNION ALL SELECT fragment, 'overlap', sum(overlap) FROM parts GROUP BY ALL
    UNION ALL SELECT fragment, fate, rest - set_aside FROM tails
    UNION ALL SELECT fragment, 'set_aside', set_aside FROM tails
    UNION ALL SELECT fragment, fate, tokens FROM unread
    UNION ALL SELECT fragment, 'overlap', -tokens FROM unread
    UNION ALL SELECT f.fragment, if(EXISTS (
        FROM claims c WHERE c.who = l.who AND c.fragment = f.fragment AND l.step > c.base_step AND l.step <= c.step
    ), 'committed', 'unknown'), tokens
    FROM lost l CROSS JOIN (SELECT unnest(range((SELECT max(count) FROM rules))) AS fragment) f
    UNION ALL SELECT unnest(range((SELECT max(count)
        FROM rules))), 'processed', (SELECT coalesce(sum(tokens), 0) FROM ledger WHERE fate = 'processed')
) GROUP BY ALL;

-- Every token that was processed has one fate: in the whole run, in each learner's books, and in each fragment's.

-- check: books.balance
-- claim: processed = committed + discarded + in flight + unknown, in whole tokens, for the run,
-- claim: learners and fragments
-- checked: units = FROM steps
WITH tables AS (
    SELECT 0 AS position, 'the run' AS name, fate, tokens FROM ledger
    UNION ALL SELECT 1 + dense_rank() OVER (ORDER BY learner), learner, fate, tokens FROM ledger
    UNION ALL SELECT 1000000 + fragment, format('fragment {}', fragment), fate, tokens FROM fragment_ledger
), sums AS (
    SELECT position, name, coalesce(sum(tokens) FILTER (fate = 'processed'), 0) AS processed,
        coalesce(sum(tokens) FILTER (fate = 'committed'), 0) AS committed,
        coalesce(sum(tokens) FILTER (fate = 'in_flight'), 0) AS in_flight,
        coalesce(sum(tokens) FILTER (fate = 'unknown'), 0) AS lacking,
        coalesce(sum(tokens) FILTER (fate NOT IN ('processed', 'committed', 'in_flight', 'unknown')), 0) AS discarded
    FROM tables GROUP BY ALL
)
SELECT position, format('{}: {} tokens processed, but {} committed, {} discarded, {} in flight and {} unknown',
    name, processed, committed, discarded, in_flight, lacking) AS told
FROM sums WHERE processed <> committed + discarded + in_flight + lacking
UNION ALL SELECT 2000000, format('the run is over with {} tokens in flight', in_flight) FROM sums
WHERE position = 0 AND in_flight > 0
    AND (SELECT arg_max(kind, position) FROM facts
        WHERE kind IN ('Finished', 'RunFinished', 'RunResumed')) <> 'RunResumed'
UNION ALL SELECT 2000001, format('{}: {} tokens is no count', name, tokens)
FROM (SELECT position, name, fate, sum(tokens) AS tokens FROM tables GROUP BY ALL) WHERE tokens < 0;

-- The syncer's count at every commit is what the steps that are covered by then add up to, and the same at the end.

-- check: books.committed
-- claim: the syncer's count of committed tokens is that of the books, at every commit and at the end
-- checked: commits = FROM commits
WITH holes AS (FROM fates WHERE first = -1), filled AS (
    SELECT h.position AS step, min(c.position) AS position, any_value(h.tokens) AS tokens
    FROM holes h JOIN (
        SELECT who, position, base_step, last, unnest(range((base_step + 1) // 256, last // 256 + 1)) AS near
        FROM covers SEMI JOIN holes USING (who)
    ) c ON c.who = h.who AND c.near = h.step // 256 AND h.step > c.base_step AND h.step <= c.last
    GROUP BY h.position
), fresh AS (
    SELECT position, sum(tokens) AS tokens FROM (
        SELECT first AS position, sum(tokens) AS tokens FROM fates WHERE first >= 0 GROUP BY first
        UNION ALL SELECT position, tokens FROM filled
        UNION ALL SELECT first, tokens FROM lost WHERE first IS NOT NULL
    ) GROUP BY position
), counts AS (
    SELECT c.position, syncer_step, tokens_committed, (sum(coalesce(f.tokens,
        0)) OVER (ORDER BY c.position))::BIGINT AS total
    FROM commits c LEFT JOIN fresh f USING (position)
), books AS (SELECT coalesce(sum(tokens), 0) AS committed FROM ledger WHERE fate = 'committed')
SELECT position, format('at syncer step {} the syncer counts {} committed tokens, the steps in the log {}',
    syncer_step, tokens_committed, total) AS told
FROM counts WHERE tokens_committed <> total
UNION ALL SELECT position, format('the syncer finished at {} committed tokens, the books hold {}',
    tokens_committed, committed)
FROM finishes, books WHERE tokens_committed <> committed AND stretch = (SELECT max(stretch) FROM rules);
