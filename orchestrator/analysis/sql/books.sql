-- The token books: the fate of every token that was processed. The unit is one step of one incarnation.

-- The steps in the log's order, as stretches of successive steps of one size: after the step `before`, from `first` to
-- `last`. Those beyond all that the incarnation finished before, (after, last], count; `place` and `upto`: how many
-- steps and tokens count before these. `jumps`: the clock differs by more than 0.5 s from the seconds that the first
-- step counts since `t_before`.
CREATE OR REPLACE TEMP TABLE stretches AS
WITH edges AS (
    SELECT who, position, step, tokens, t, lag(step) OVER w AS before, lag(t) OVER w AS t_before,
        step = before + 1 AND abs(t - t_before - (seconds + waited_s)) > 0.5 AS jumps,
        jumps OR step IS DISTINCT FROM before + 1 OR tokens <> lag(tokens) OVER w AS begins
    FROM steps WINDOW w AS (PARTITION BY who ORDER BY position)
), found AS (
    SELECT who, position, t, t_before, jumps, before, step AS first, tokens, lead(before) OVER w AS last
    FROM edges WHERE begins WINDOW w AS (PARTITION BY who ORDER BY position)
), fresh AS (
    SELECT * EXCLUDE (newest) REPLACE (coalesce(last, newest) AS last),
        greatest(first - 1, -1, max(last) OVER earlier) AS after
    FROM found JOIN (SELECT who, max_by(step, position) AS newest FROM steps GROUP BY who) USING (who)
    WINDOW earlier AS (PARTITION BY who ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), sized AS (SELECT *, greatest(0, last - after) AS count FROM fresh)
SELECT *, (sum(count) OVER so_far - count)::BIGINT AS place,
    (sum(count * tokens) OVER so_far - count * tokens)::BIGINT AS upto
FROM sized WINDOW so_far AS (PARTITION BY who ORDER BY position);

-- The steps that count.
CREATE OR REPLACE TEMP VIEW counted AS
SELECT s.who, s.step, s.position, s.tokens, place + s.step - after AS place
FROM steps s ASOF JOIN stretches r ON r.who = s.who AND s.position >= r.position WHERE s.step > after;

-- How many steps, and tokens, count up to a step, of which `s` is the newest stretch begun before it.
CREATE OR REPLACE TEMP MACRO steps_to(step, s) AS coalesce(s.place + least(s.last, step) - s.after, 0);

CREATE OR REPLACE TEMP MACRO tokens_to(step, s) AS coalesce(s.upto + (least(s.last, step) - s.after) * s.tokens, 0);

-- A contribution covers the steps (base_step, last]: those up to its step that the log has before its commit. `count`
-- and `upto`: the steps and tokens up to these, and `base_count` and `base_upto` up to its base; `before`: the step at
-- which the incarnation was read for the fragment before; `falls`: that was after it in the log.
CREATE OR REPLACE TEMP TABLE covers AS
WITH told AS (
    SELECT who, position AS place, step AS done, NULL AS fragment, NULL AS base_step, NULL AS step,
        NULL AS steps, NULL AS tokens FROM steps
    UNION ALL SELECT who, place, NULL, fragment, base_step, step, steps, tokens FROM contributions
), dated AS (
    SELECT * EXCLUDE (done), least(step, greatest(-1, max(done) OVER so_far)) AS last FROM told
    WINDOW so_far AS (PARTITION BY who ORDER BY place ROWS UNBOUNDED PRECEDING)
), counted AS (
    SELECT c.*, steps_to(c.last, s) AS count, tokens_to(c.last, s) AS upto,
        steps_to(base_step, b) AS base_count, tokens_to(base_step, b) AS base_upto
    FROM (FROM dated WHERE step IS NOT NULL) c
    ASOF LEFT JOIN (FROM stretches WHERE count > 0) s ON s.who = c.who AND s.after < c.last
    ASOF LEFT JOIN (FROM stretches WHERE count > 0) b ON b.who = c.who AND b.after < c.base_step
)
SELECT *, lag(step, 1, -1) OVER reads AS before, lag(upto, 1, 0) OVER reads AS upto_before,
    coalesce(place < lag(place) OVER reads, false) AS falls
FROM counted WINDOW reads AS (PARTITION BY who, fragment ORDER BY step, place);

-- Of the contributions that cover the steps (after, last], and maybe more: the oldest base, and the first commit with
-- its base.
CREATE OR REPLACE TEMP TABLE reached AS
SELECT who, last, upto, min(greatest(base_step, -1)) OVER so_far AS base,
    floor(min(place) OVER so_far)::BIGINT AS position, greatest(arg_min(base_step, place) OVER so_far, -1) AS first_base,
    lead(last, 1, -1) OVER (PARTITION BY who ORDER BY last DESC, place) AS after,
    lead(upto, 1, 0) OVER (PARTITION BY who ORDER BY last DESC, place) AS upto_after
FROM covers WHERE last > base_step
WINDOW so_far AS (PARTITION BY who ORDER BY last DESC, place ROWS UNBOUNDED PRECEDING);

-- The incarnations of which facts were lost, with the last step before each loss and the next one (which may be none).
CREATE OR REPLACE TEMP TABLE losses AS
SELECT DISTINCT l.who, l.after, if(n.who IS NULL, NULL, greatest(l.after, n.after) + 1) AS next, n.tokens
FROM (
    SELECT i.who, coalesce(max(step), 0) AS after
    FROM FactsLost l JOIN incarnations i ON i.learner = l.writer AND i.incarnation = l.incarnation
    LEFT JOIN steps s ON s.who = i.who AND s.position < l.position GROUP BY i.who, l.position
) l ASOF LEFT JOIN (FROM stretches WHERE count > 0) n ON n.who = l.who AND n.last > l.after;

-- Contributions that claim steps which the log lacks, with the tokens that they count beyond the known ones.
CREATE OR REPLACE TEMP TABLE claims AS
SELECT c.who, floor(c.place)::BIGINT AS position, fragment, base_step, step, steps, tokens,
    row_number() OVER (PARTITION BY who ORDER BY c.place) AS n
FROM (
    SELECT c.* REPLACE (c.steps - greatest(0, c.count - base_count) AS steps,
        c.tokens - greatest(0, c.upto - base_upto) AS tokens)
    FROM covers c SEMI JOIN losses USING (who)
) c WHERE steps > 0;

-- Steps missing between two known ones count with the tokens of the next known one; after the last known one, those
-- that contributions claim. A contribution that covers lost steps says their tokens: what it counts beyond what is
-- known. From then on they are committed with that number; `first`: where; otherwise they are unknown.
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
SELECT who, unnest(arg_max(steps, n), recursive := true) FROM told GROUP BY who;

-- Up to which step each incarnation's adoptions overwrote each fragment.
CREATE OR REPLACE TEMP TABLE overwritten AS
SELECT who, fragment, max(upto) AS upto FROM (
    SELECT who, fragment, after_step AS upto FROM adoptions WHERE mode IN ('bootstrap', 'overwrite')
    -- The adoption that a contribution counts from may be lost.
    UNION ALL SELECT who, fragment, base_step FROM covers SEMI JOIN losses USING (who)
) WHERE fragment < (SELECT max(count) FROM rules) GROUP BY ALL;

-- How each incarnation ended: the first word counts, and of the syncer's words the first.
-- A fence binds the epoch that set it: when a later epoch lets the incarnation attach, it has not ended. Nor has it
-- when it ended with a run that was resumed with exactly its state.
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
        first_value(if(exact IS NULL, NULL, {'exact': exact, 'position': position}) IGNORE NULLS) OVER after AS next
    FROM told
    WINDOW before AS (ORDER BY position ROWS UNBOUNDED PRECEDING),
        after AS (ORDER BY position ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
), acts AS (
    SELECT learner, incarnation, told_by, kind = 'LearnerFenced' AS fences, min(position) AS position
    FROM told WHERE kind IN ('LearnerAttached', 'LearnerFenced') GROUP BY ALL
), lifted AS (
    SELECT a.learner, a.incarnation, a.position FROM acts a JOIN acts b USING (learner, incarnation) WHERE NOT a.fences
    GROUP BY a.learner, a.incarnation, a.position, a.told_by
    HAVING max(b.told_by) FILTER (b.fences AND b.told_by < a.told_by)
            >= coalesce(max(b.told_by) FILTER (NOT b.fences AND b.told_by < a.told_by), 0)
        AND coalesce(bool_and(a.told_by > b.told_by) FILTER (NOT b.fences AND b.position < a.position), true)
), ended AS (
    SELECT *, kind IN ('LearnerFenced', 'LearnerLost') AND NOT (over
        AND coalesce(list_contains(next.exact, learner), false)
        AND incarnation = max(incarnation) FILTER (kind IN ('LearnerFenced', 'LearnerLost')) OVER (
            PARTITION BY learner ORDER BY next.position RANGE UNBOUNDED PRECEDING)) AS holds
    FROM run
), fates AS (
    SELECT learner, incarnation, CASE WHEN arg_min(over, position) FILTER (holds) THEN 'run_ended'
        WHEN arg_min(drained, position) FILTER (holds AND kind = 'LearnerFenced') THEN 'drained'
        WHEN bool_or(holds) THEN 'killed' END AS fate, arg_max(aside, position) FILTER (kind = 'SetAside') AS aside
    FROM ended LEFT JOIN (SELECT learner, incarnation, max(position) AS lifted FROM lifted GROUP BY ALL)
        USING (learner, incarnation)
    WHERE learner IS NOT NULL AND (kind = 'SetAside' OR position > coalesce(lifted, -1)) GROUP BY ALL
)
SELECT i.*, aside, upto,
    coalesce(fate, if((SELECT arg_max(over, position) FROM told), 'run_ended', 'in_flight')) AS fate
FROM incarnations i LEFT JOIN fates USING (learner, incarnation)
LEFT JOIN (
    SELECT who, min(upto) AS upto FROM overwritten GROUP BY who HAVING count(*) = (SELECT max(count) FROM rules)
) USING (who);

-- The fate of each step: committed, where a contribution that covers it merged into any fragment; or else overlap,
-- where every fragment was overwritten after it; or else as its incarnation ended.
CREATE OR REPLACE TEMP TABLE fates AS
WITH uncommitted AS (
    SELECT who, after, least(base, last) AS last FROM reached WHERE base > after
    UNION ALL SELECT who, coalesce(max(last), -1), 1::BIGINT << 62 FROM incarnations LEFT JOIN reached USING (who)
    GROUP BY who
)
SELECT s.who, s.step, position, t, seconds, waited_s, waited_for, s.tokens, CASE WHEN u.last >= s.step IS NOT TRUE
    THEN 'committed' WHEN s.step <= e.upto THEN 'overlap' WHEN s.step = e.aside THEN 'set_aside' ELSE e.fate END AS fate
FROM steps s ANTI JOIN (FROM stretches WHERE first <= after) back
    ON back.who = s.who AND s.position >= back.position AND s.step <= back.after
JOIN ends e USING (who) ASOF LEFT JOIN uncommitted u ON u.who = s.who AND s.step > u.after;

-- A refused contribution surely covered the steps that finished before its syncer step opened and after the last
-- overwriting adoption before the refusal. (Of a duplicate, the first copy was accepted.)
CREATE OR REPLACE TEMP TABLE refusals AS
WITH refused AS (
    SELECT r.position, i.who, r.fragment, if(r.reason = 'stale_base', r.reason, 'refused') AS fate, o.position AS opened
    FROM Refused r JOIN incarnations i USING (learner, incarnation)
    ASOF JOIN StepOpened o ON r.syncer_step = o.syncer_step AND r.position > o.position
    WHERE message = 'contribution' AND r.reason <> 'doubled' AND r.fragment < (SELECT max(count) FROM rules)
)
SELECT r.position, r.who, r.fragment, r.fate, s.step AS upto, coalesce(a.based, -1) AS based
FROM refused r ASOF JOIN fates s ON r.who = s.who AND s.position < r.opened
ASOF LEFT JOIN (
    SELECT who, fragment, position, max(after_step) OVER (PARTITION BY who, fragment ORDER BY position) AS based
    FROM adoptions SEMI JOIN refused USING (who, fragment) WHERE mode IN ('bootstrap', 'overwrite')
) a ON a.who = r.who AND a.fragment = r.fragment AND a.position < r.position;

-- It is why such a step was overwritten unread: of several, the newest of the last fragment tells.
UPDATE fates SET fate = r.fate FROM (
    SELECT f.position, arg_max(r.fate, (r.fragment, r.position)) AS fate
    FROM fates f JOIN refusals r ON f.who = r.who AND f.step > r.based AND f.step <= r.upto
    WHERE f.fate = 'overlap' GROUP BY f.position
) r WHERE fates.position = r.position;

-- The tokens of each learner by fate. `processed` counts all that was said, by itself.
CREATE OR REPLACE TEMP TABLE ledger AS
SELECT learner, fate, sum(tokens)::BIGINT AS tokens FROM (
    SELECT who, fate, sum(tokens) AS tokens FROM fates GROUP BY ALL
    UNION ALL SELECT who, 'processed', sum(tokens) FROM steps GROUP BY who
    UNION ALL SELECT who, unnest(['processed', if(first IS NULL, 'unknown', 'committed')]), tokens FROM lost
) JOIN incarnations USING (who) GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE fragments AS SELECT unnest(range((SELECT max(count) FROM rules))) AS fragment;

-- What each incarnation leaves of each fragment in the end: the steps after `before`, at which it was last read,
-- up to the last that an adoption overwrote, `wiped`, and the rest.
CREATE OR REPLACE TEMP TABLE tails AS
SELECT who, fragment, wiped, fate, sum(tokens * (to_wiped - greatest(0, least(last, before) - after)))::BIGINT AS overlap,
    sum(tokens * (count - to_wiped))::BIGINT AS rest,
    coalesce(any_value(tokens) FILTER (aside > greatest(after, wiped) AND aside <= last), 0) AS set_aside
FROM (
    SELECT e.*, s.* EXCLUDE (who, before), greatest(0, least(last, wiped) - after) AS to_wiped FROM (
        SELECT who, fragment, fate, aside, coalesce(before, -1) AS before, greatest(before, o.upto, -1) AS wiped
        FROM ends CROSS JOIN fragments LEFT JOIN overwritten o USING (who, fragment)
        LEFT JOIN (SELECT who, fragment, max(step) AS before FROM covers GROUP BY ALL) USING (who, fragment)
    ) e JOIN stretches s USING (who)
) GROUP BY who, fragment, wiped, fate;

-- The steps whose part of a fragment was overwritten unread because of a refusal, the newest for this fragment.
CREATE OR REPLACE TEMP TABLE unread AS
WITH steps AS (
    SELECT r.who, r.fragment, s.step, s.tokens, arg_max(r.fate, r.position) AS fate
    FROM refusals r JOIN fates s ON s.who = r.who AND s.step > r.based AND s.step <= r.upto GROUP BY ALL
)
SELECT s.fragment, s.fate, s.tokens FROM steps s JOIN tails t ON t.who = s.who AND t.fragment = s.fragment
ASOF LEFT JOIN (FROM covers WHERE step > before) c ON c.who = s.who AND c.fragment = s.fragment AND s.step <= c.step
WHERE s.step <= coalesce(greatest(c.base_step, c.before), wiped);

-- The tokens of each fragment by fate: was this token's part of this fragment committed? A contribution commits what it
-- covers beyond what was read before, and what it leaves out between these was overwritten.
CREATE OR REPLACE TEMP TABLE fragment_ledger AS
SELECT fragment, fate, sum(tokens)::BIGINT AS tokens FROM (
    SELECT fragment, unnest(['committed', 'overlap']) AS fate, unnest([committed, overlap]) AS tokens FROM (
        SELECT fragment, sum(greatest(0, upto - greatest(base_upto, upto_before))) AS committed,
            sum(greatest(0, base_upto - upto_before)) AS overlap FROM covers GROUP BY fragment
    ) SEMI JOIN fragments USING (fragment)
    UNION ALL SELECT fragment, unnest(['overlap', fate, 'set_aside']), unnest([overlap, rest - set_aside, set_aside])
    FROM tails
    UNION ALL SELECT fragment, unnest([fate, 'overlap']), unnest([tokens, -tokens]) FROM unread
    UNION ALL SELECT f.fragment, if(EXISTS (
        FROM claims c WHERE c.who = l.who AND c.fragment = f.fragment AND l.step > c.base_step AND l.step <= c.step
    ), 'committed', 'unknown'), tokens
    FROM lost l CROSS JOIN fragments f
    UNION ALL SELECT fragment, 'processed', coalesce(sum(tokens), 0)
    FROM fragments LEFT JOIN ledger ON fate = 'processed' GROUP BY fragment
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
WITH late AS (
    SELECT who, greatest(after, base) AS after, last, first_base FROM reached
    WHERE first_base > greatest(after, base) AND last > greatest(after, base)
), holes AS (
    -- Its first commit is not of the first contribution that reaches so far.
    SELECT f.position, f.who, f.step, f.tokens FROM (FROM fates SEMI JOIN late USING (who)) f
    ASOF JOIN late h ON h.who = f.who AND f.step > h.after WHERE f.step <= least(first_base, last)
), filled AS (
    SELECT h.position AS step, floor(min(c.place))::BIGINT AS position, any_value(h.tokens) AS tokens
    FROM holes h JOIN (
        SELECT who, place, base_step, last, unnest(range((base_step + 1) // 256, last // 256 + 1)) AS near
        FROM covers SEMI JOIN holes USING (who)
    ) c ON c.who = h.who AND c.near = h.step // 256 AND h.step > c.base_step AND h.step <= c.last
    GROUP BY h.position
), fresh AS (
    SELECT position, sum(tokens) AS tokens FROM (
        SELECT position, upto - upto_after AS tokens FROM reached WHERE first_base <= after
        UNION ALL SELECT r.position, greatest(0, r.upto - greatest(upto_after, tokens_to(first_base, s)))
        FROM (FROM reached WHERE first_base > after) r
        ASOF LEFT JOIN (FROM stretches WHERE count > 0) s ON s.who = r.who AND s.after < first_base
        UNION ALL SELECT position, tokens FROM filled
        UNION ALL SELECT first, tokens FROM lost WHERE first IS NOT NULL
    ) GROUP BY position
), counts AS (
    SELECT c.position, syncer_step, tokens_committed,
        (sum(coalesce(f.tokens, 0)) OVER (ORDER BY c.position))::BIGINT AS total
    FROM commits c LEFT JOIN fresh f USING (position)
), books AS (SELECT coalesce(sum(tokens), 0) AS committed FROM ledger WHERE fate = 'committed')
SELECT position, format('at syncer step {} the syncer counts {} committed tokens, the steps in the log {}',
    syncer_step, tokens_committed, total) AS told
FROM counts WHERE tokens_committed <> total
UNION ALL SELECT position, format('the syncer finished at {} committed tokens, the books hold {}',
    tokens_committed, committed)
FROM finishes, books WHERE tokens_committed <> committed AND resumptions = (SELECT max(resumptions) FROM rules);
