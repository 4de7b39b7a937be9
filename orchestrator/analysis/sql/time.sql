-- Where the learners' time went: every second of every wanted learner has one category.

-- The categories, ascending: where two overlap, the later one counts. `words`: the fates of steps, what a step waits
-- for before it begins, and the phases, that have the category. Besides those: from noticing a death to the request for
-- the next incarnation is `fault_recover`, from the death to noticing it `fault_detect`, from being wanted, or from the
-- request, until there is a process `provision_wait`; frozen by a fault is `suspended`. What no fact explains is
-- `unattributed`.
CREATE OR REPLACE TEMP TABLE categories AS
FROM (VALUES (0, 'unattributed', []), (1, 'fault_recover', []), (2, 'provision_wait', []), (3, 'fault_detect', []),
    (4, 'startup', ['starting', 'importing']), (5, 'compile', ['compiling']), (6, 'bootstrap', ['joining']),
    (7, 'drain', ['draining']), (8, 'data_stall', ['span', 'data']), (9, 'sync_blocked', ['adoption', 'snapshot']),
    (10, 'wasted_run_ended', ['run_ended']), (11, 'wasted_refused', ['refused', 'stale_base']),
    (12, 'wasted_overlap', ['overlap']), (13, 'wasted_drained', ['drained']),
    (14, 'wasted_killed', ['killed', 'set_aside']), (15, 'in_flight', ['in_flight']), (16, 'productive', ['committed']),
    (17, 'suspended', [])) AS categories(rank, category, words);

CREATE OR REPLACE TEMP TABLE ranks AS SELECT unnest(words) AS word, rank FROM categories;

-- When the run had no process: from the last step or commit before a resumption to the resumption.
CREATE OR REPLACE TEMP TABLE pauses AS
SELECT signs.t, max(resumed.t) AS until
FROM RunResumed resumed ASOF JOIN (SELECT t FROM steps UNION ALL SELECT t FROM commits_told) signs
    ON resumed.t > signs.t
GROUP BY signs.t;

-- The window: from the beginning of the first step, waiting included, to the last commit, or to the first Finished
-- since the run was resumed. No row where there is none, or where the configured learners are not known.
CREATE OR REPLACE TEMP TABLE run_window AS
SELECT start, stop FROM (SELECT min(t - seconds - waited_s) AS start FROM steps), (
    SELECT greatest(any_value(committed), min_by(t, position) FILTER (position > resumed)) AS stop
    FROM (SELECT max(t) AS committed FROM commits), (SELECT coalesce(max(position), -1) AS resumed FROM RunResumed)
    LEFT JOIN Finished ON true)
WHERE start < stop AND EXISTS (FROM rules);

-- What explains an incarnation's time besides its steps.
CREATE OR REPLACE TEMP TABLE explained AS
WITH strict AS (
    SELECT DISTINCT learner, true AS strict FROM fates JOIN incarnations USING (who) WHERE waited_for = 'adoption'
), lives AS (
    SELECT *, coalesce(ended, stop) AS until, coalesce(least(started, phased), ended, stop) AS born
    FROM roster LEFT JOIN strict USING (learner), run_window
), of_lives AS (
    SELECT learner, unnest([
        {category: 'provision_wait', t: requested, until: born},
        {category: 'startup', t: born, until: CASE WHEN born < lives.until THEN coalesce(phased, lives.until) END},
        -- From its last step to its leaving it waited for what never came: only death breaks a step off.
        {category: CASE WHEN strict THEN 'sync_blocked' ELSE 'data_stall' END, t: greatest(stepping, stepped),
            until: left_at},
        -- Until its process has ended, it hands in its last facts.
        {category: 'drain', t: CASE WHEN over = 'drained' THEN left_at END, until: coalesce(noticed, again, stop)},
        -- The unfinished step, if it never left the phase stepping.
        {category: 'wasted_' || over, t: CASE WHEN phase.phase = 'stepping' THEN greatest(phase.t, stepped) END,
            until: CASE WHEN over <> 'stopped' THEN ended END},
        {category: 'fault_detect', t: died, until: noticed},
        {category: 'fault_recover', t: CASE WHEN over <> 'stopped' THEN noticed END,
            until: CASE WHEN heir IS NULL OR over = 'drained' THEN coalesce(again, stop) ELSE again END}
    ], recursive := true) FROM lives
)
SELECT learner, rank, t, until FROM of_lives JOIN categories USING (category)
UNION ALL SELECT learner, rank, p.t, coalesce(p.until, lives.until)
FROM phases p JOIN lives USING (who) JOIN ranks ON p.phase = word
UNION ALL SELECT learner, 4, pauses.until, r.t FROM (FROM about JOIN lives USING (who) WHERE kind = 'Resumed') r
    ASOF JOIN pauses ON r.t >= pauses.until
UNION ALL SELECT learner, 17, frozen.t, frozen.until FROM frozen JOIN lives USING (who)
UNION ALL SELECT w.learner, 2, w.t, coalesce(min(requested), any_value(stop))
FROM wanted w CROSS JOIN run_window LEFT JOIN roster r ON r.learner = w.learner AND requested >= w.t GROUP BY ALL;

-- The borders of steps and their waits. Each step and its wait are cut off at the boundary before it, so that steps
-- never overlap; within 0.5 s from boundary to boundary there is nothing else: the dates of both are a little late.
-- Steps that follow each other with one rank have no border.
CREATE OR REPLACE TEMP TABLE step_borders AS
WITH dated AS (
    SELECT who, learner, t, seconds, f.rank, w.rank AS waiting, if(w.rank IS NULL, 0.0, waited_s) AS waited_s,
        greatest(stepping, max(t) OVER (steps ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS before,
        lag(f.rank) OVER steps AS rank_before, lead(who) OVER steps IS NULL AS last
    FROM fates JOIN ranks f ON fate = f.word LEFT JOIN ranks w ON waited_for = w.word JOIN roster USING (who)
    WINDOW steps AS (PARTITION BY who ORDER BY step)
), begun AS (
    SELECT *, t - seconds - waited_s - before AS late_s, CASE WHEN late_s < 0.5 THEN
        CASE WHEN late_s > 0 THEN before + waited_s ELSE greatest(before, t - seconds) END ELSE t - seconds END AS begun
    FROM dated
), shown AS (
    SELECT *, begun > before OR before IS NULL AS apart, apart OR rank_before IS DISTINCT FROM rank AS opens FROM begun
    WHERE apart OR rank_before IS DISTINCT FROM rank OR last
), borders AS (
    SELECT learner, unnest([
        {rank: rank, t: begun, change: opens::INT},
        {rank: rank_before, t: before, change: -opens::INT},
        {rank: waiting, t: greatest(before, begun - waited_s), change: (apart AND waited_s > 0)::INT},
        {rank: waiting, t: begun, change: -(apart AND waited_s > 0)::INT},
        {rank: rank, t: greatest(before, t), change: -last::INT}
    ], recursive := true) FROM shown
)
SELECT * FROM borders WHERE change <> 0 AND rank IS NOT NULL;

-- Seconds by learner and rank: of all that overlaps, the highest. `ranks` has a bit for each; rank 0 is the time in
-- which the learner was wanted, and rank 18 a pause.
CREATE OR REPLACE TEMP TABLE painted AS
WITH spans AS (
    SELECT learner, 0 AS rank, greatest(t, start) AS t, least(until, stop) AS until FROM wanted, run_window
    UNION ALL SELECT learner, 18, p.t, p.until FROM wanted, pauses p
    UNION ALL SELECT learner, rank, t, until FROM explained
), borders AS (
    SELECT learner, rank, unnest([t, until]) AS t, unnest([1, -1]) AS change FROM spans WHERE t < until
    UNION ALL FROM step_borders
), changes AS (
    SELECT *, sum(change) OVER (PARTITION BY learner, rank ORDER BY t) AS count
    FROM (SELECT learner, rank, t, sum(change) AS change FROM borders GROUP BY ALL)
), moments AS (
    SELECT learner, t, sum(((count > 0)::BIGINT - (count > change)::BIGINT) * (1 << rank)) AS change
    FROM changes GROUP BY learner, t
), stretches AS (
    SELECT learner, (sum(change) OVER moments)::BIGINT AS ranks, lead(t) OVER moments - t AS seconds FROM moments
    WINDOW moments AS (PARTITION BY learner ORDER BY t)
)
SELECT learner, len(bin(ranks)) - 1 AS rank, sum(seconds) AS seconds FROM stretches
WHERE ranks & 1 > 0 AND ranks < 1 << 18 GROUP BY ALL;

-- For how long each learner was wanted, within the window and without pauses.
CREATE OR REPLACE TEMP TABLE wanted_time AS
SELECT learner, min({position: position, part: part}) AS place,
    sum(greatest(0.0, least(until, stop) - greatest(t, start) - coalesce((SELECT
        sum(greatest(0.0, least(p.until, w.until, stop) - greatest(p.t, w.t, start))) FROM pauses p), 0.0))) AS wanted_s
FROM wanted w, run_window GROUP BY learner;

CREATE OR REPLACE TEMP TABLE time_accounts AS
SELECT learner, category, coalesce(seconds, 0.0) AS seconds, rank
FROM wanted_time CROSS JOIN categories LEFT JOIN painted USING (learner, rank)
WHERE (SELECT sum(wanted_s) FROM wanted_time) > 0;

-- Undecided where the log lacks a learner's request or its last facts, or where the writers' clocks contradict causal
-- order or a learner's own count of seconds by more than 0.5 s: a step ends before it is merged, and a version is
-- adopted after it was made, by the epoch that told it first. Up to 1 % may be unexplained, or 0.25 s of each learner.
-- check: accounted.time
-- claim: the categories of time sum to the whole, and at most 1% of it is unexplained
-- checked: learners = FROM wanted_time
WITH made AS (
    SELECT syncer_step AS version, min_by(t, position) AS made FROM commits WHERE told_by = epoch GROUP BY ALL
), clocks AS (
    SELECT position, who, format('finished step {} after it was merged: wall clocks differ', step) AS told
    FROM contributions c JOIN commits USING (position) JOIN fates f USING (who, step) WHERE f.t > commits.t + 0.5
    UNION ALL SELECT position, who, format('adopted version {} before it was made: wall clocks differ', version)
    FROM adoptions JOIN made USING (version) WHERE t < made - 0.5
), whole AS (
    SELECT sum(seconds) AS unexplained, max_by(learner, seconds) AS worst,
        greatest(0.01 * sum(wanted_s), 0.25 * count(*)) AS most,
        string_agg(learner, ', ' ORDER BY place) FILTER (silent_s > 0) AS silent, sum(silent_s) AS silent_s
    FROM (
        SELECT learner, seconds, wanted_s, place, CASE WHEN missing THEN seconds WHEN last <> 'RunResumed'
            AND coalesce(over, 'stopped') = 'stopped' AND NOT stopped AND stop - coalesce(stepped, stepping) > 0.5
            THEN stop - coalesce(stepped, stepping) ELSE 0.0 END AS silent_s
        FROM time_accounts JOIN wanted_time USING (learner) LEFT JOIN roster r USING (learner) LEFT JOIN (
            SELECT DISTINCT fact->>'$.writer' AS learner, true AS missing FROM facts WHERE kind = 'FactsLost')
            USING (learner), run_window, (SELECT max_by(kind, position) AS last FROM facts
                WHERE kind IN ('Finished', 'RunFinished', 'RunResumed'))
        WHERE rank = 0 QUALIFY row_number() OVER (PARTITION BY learner ORDER BY coalesce(requested > stop, false),
            incarnation DESC) = 1)  -- its newest incarnation by the end of the window
), found AS (
    SELECT -1 AS position, 'the log does not tell when every learner was asked for' AS told, true AS unknown
    WHERE NOT EXISTS (FROM commits) OR EXISTS (FROM roster WHERE steps > 0 AND requested IS NULL)
    UNION ALL SELECT position, format('{} {} {}', learner, incarnation, told), true
    FROM clocks JOIN incarnations USING (who)
    UNION ALL SELECT position, format('the wall clock of {} {} jumped before its step {}', learner, incarnation,
        first), true
    FROM (FROM stretches WHERE jumps) s ANTI JOIN (FROM about WHERE kind = 'Resumed') a
        ON a.who = s.who AND t_before < a.t AND a.t <= s.t JOIN incarnations USING (who)
    UNION ALL SELECT 8e18::BIGINT, 'the log has no step before a commit', true WHERE NOT EXISTS (FROM time_accounts)
    UNION ALL SELECT 9e18::BIGINT, if(unexplained - silent_s <= most, 'the log lacks facts of ' || silent,
            format('{:.2f} s are unexplained, most of them of {}; allowed are {:.2f} s', unexplained, worst, most)),
        unexplained - silent_s <= most
    FROM whole WHERE unexplained > most
    UNION ALL SELECT 0, format('the categories of {} sum to {:.6f} s of {:.6f} s', learner, total, wanted_s), false
    FROM (SELECT learner, sum(seconds) AS total, min(seconds) AS least FROM time_accounts GROUP BY learner)
        JOIN wanted_time USING (learner)
    WHERE abs(total - wanted_s) > 1e-6 * greatest(1.0, wanted_s) OR least < 0
)
FROM found QUALIFY unknown OR NOT bool_or(unknown) OVER ();
