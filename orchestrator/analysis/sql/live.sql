-- While K learners are alive every fragment keeps committing, and it does so again after a fault.

-- What the syncer told besides its routine, the faults, and the waits for a store that was away.
CREATE OR REPLACE TEMP TABLE turns AS
SELECT position, kind, fact->>'$.learner' AS learner, (fact->>'$.incarnation')::BIGINT AS incarnation,
    kind IN ('LeaseExpired', 'LearnerFenced', 'Quarantined', 'DrainStarted') AS loses,
    CASE WHEN kind = 'StoreWaited' THEN (fact->>'$.seconds')::DOUBLE ELSE 0.0 END AS waited_s,
    -- Retried, it counts once by kind and syncer step.
    CASE WHEN kind NOT IN ('StepReopened', 'ReadFailed', 'Refused') THEN position::VARCHAR
        ELSE kind || coalesce(fact->>'$.syncer_step',
            format(' {} {} {}', fact->>'$.learner', fact->>'$.incarnation', fact->>'$.reason')) END AS trouble
FROM facts
WHERE kind IN ('StoreWaited', 'FaultInjected', 'FaultHealed') OR writer = 'syncer'
    AND kind NOT IN ('SpanGranted', 'SpanReturned', 'StepOpened', 'StepPassed', 'Finished');

-- When an incarnation was alive by the syncer's facts: from its attaching, or its lease renewed, until the next such
-- fact of its learner, its leaving or losing its lease, or the syncer's next epoch.
CREATE OR REPLACE TEMP TABLE alive AS
SELECT position, learner, incarnation, least(
    lead(position) OVER (PARTITION BY learner, kind IN ('LearnerAttached', 'LeaseRenewed') ORDER BY position),
    min(position) FILTER (loses) OVER (PARTITION BY learner, incarnation ORDER BY position
        ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING),
    min(position) FILTER (kind = 'SyncerStarted') OVER (ORDER BY position
        ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING), 9e18::BIGINT) AS until
FROM turns QUALIFY kind IN ('LearnerAttached', 'LeaseRenewed');

-- The log's end for the gaps after the last commits: the first Finished after them, for nothing commits after it.
CREATE OR REPLACE TEMP TABLE dated AS
SELECT position, t, incarnation AS epoch, kind FROM facts WHERE writer = 'syncer' AND kind <> 'StoreWaited'
UNION ALL SELECT position, t, told_by, 'Committed' FROM commits;

CREATE OR REPLACE TEMP TABLE log_end AS
SELECT if(kind = 'Finished', position, 8e18::BIGINT) AS position, t, epoch FROM dated
WHERE position <= coalesce((SELECT min(position) FROM dated WHERE kind = 'Finished'
    AND position > coalesce((SELECT max(position) FROM commits), -1)), 8e18)
    AND (EXISTS (FROM commits) OR EXISTS (FROM Finished))
ORDER BY dated.position DESC LIMIT 1;

-- Who can still take part at the end: those that stepped, and took part in the fragment's last commit, if there is one.
CREATE OR REPLACE TEMP TABLE left_over AS
SELECT f.fragment, who, coalesce(step, -1) AS base_step
FROM (SELECT unnest(range(count)) AS fragment FROM (FROM rules ORDER BY position DESC LIMIT 1)) f
LEFT JOIN (SELECT fragment, max(position) AS position FROM commits GROUP BY ALL) last USING (fragment)
CROSS JOIN (FROM roster WHERE steps > 0 AND coalesce(over, 'stopped') = 'stopped') r
LEFT JOIN (SELECT position, who, max_by(step, part) AS step FROM contributions GROUP BY ALL) c USING (position, who)
WHERE last.position IS NULL OR step IS NOT NULL;

-- The gaps from each commit of a fragment to its next, from the start to the first, and from the last to the end; where
-- K learners, at least, were healthy: alive throughout, and without a fault that prevents contributions.
-- `calm`: it is judged as the rate.
CREATE OR REPLACE TEMP TABLE gaps AS
WITH marks AS (
    SELECT *, sum(alive) OVER so_far AS living, sum(losses) OVER so_far AS lost, sum(troubles) OVER so_far AS troubled,
        sum(waited_s) OVER so_far AS waited
    FROM (
        SELECT position, 0 AS alive, loses::BIGINT AS losses, (kind <> 'StoreWaited')::BIGINT AS troubles, waited_s,
            NULL AS fragment, NULL AS version, NULL AS t, NULL AS epoch FROM turns
        UNION ALL SELECT unnest([position, until]), unnest([1, -1]), 0, 0, 0.0, NULL, NULL, NULL, NULL FROM alive
        UNION ALL SELECT position, 0, 0, 0, 0.0, fragment, syncer_step, t, told_by FROM commits
        UNION ALL SELECT position, 0, 0, 0, 0.0, fragment, NULL, t, epoch
        FROM log_end, (SELECT fragment FROM left_over GROUP BY ALL
            HAVING count(*) >= (SELECT quorum FROM rules ORDER BY position DESC LIMIT 1))
    )
    WINDOW so_far AS (ORDER BY position) QUALIFY fragment IS NOT NULL
), pairs AS (
    SELECT fragment, position, epoch, lag(position) OVER turns AS begin, lag(version) OVER turns AS since,
        version, waited - lag(waited, 1, 0.0) OVER turns AS waited_s,
        if(epoch = lag(epoch) OVER turns, t - lag(t) OVER turns - waited_s, NULL) AS dated_s,
        begin IS NULL OR troubled = lag(troubled) OVER turns AS calm,
        lag(living) OVER turns - (lost - lag(lost) OVER turns) AS healthy
    FROM marks WINDOW turns AS (PARTITION BY fragment ORDER BY position)
), faulty AS (
    SELECT a.position, a.until, learner, i.position AS injected, coalesce(healed_at, 9e18) AS healed
    FROM alive a JOIN injected i ON learner = target AND a.incarnation = i.incarnation
    WHERE fault_kind NOT IN ('kill', 'wrong_config', 'slow', 'straggle')
)
SELECT p.* EXCLUDE (healthy), quorum
FROM pairs p LEFT JOIN (
    SELECT p.fragment, p.position, count(DISTINCT learner) AS faulty FROM pairs p JOIN faulty f
        ON p.begin >= f.position AND p.begin < f.until AND f.injected <= p.position AND p.begin <= f.healed
    GROUP BY ALL
) USING (fragment, position), (FROM rules ORDER BY position DESC LIMIT 1) r
WHERE coalesce(healthy - coalesce(faulty, 0), quorum) >= quorum;

-- The gaps that are too long. By the syncer's times few may be.
CREATE OR REPLACE TEMP TABLE too_long AS
WITH limits AS (
    SELECT 3 * (round_steps + overlap_steps) AS most, most * slowest_s + round_steps * coalesce(grace_s, 0.0) AS rate_s,
        read_timeout_s + greatest(0, 4 * list_max(sizes) - (1 << 20)) / (4 << 20)
            + greatest(lease_s, 5.0 * slowest_s) + 1.0 AS patience_s
    FROM (FROM rules ORDER BY position DESC LIMIT 1), (SELECT max(grace_s) AS grace_s FROM commits),
        (SELECT coalesce(max(median_s), 0.0) AS slowest_s FROM paces WHERE steps >= 3)
), backwards AS (
    SELECT DISTINCT epoch
    FROM (SELECT epoch, t < lag(t) OVER o AND epoch = lag(epoch) OVER o AS back FROM dated WINDOW o AS (ORDER BY position))
    WHERE back
), long_ago AS (
    SELECT g.*, dated_s IS NULL OR b.epoch IS NOT NULL AS undated
    FROM gaps g LEFT JOIN backwards b USING (epoch), limits WHERE undated OR dated_s > rate_s + patience_s
), parts AS (
    SELECT g.fragment, g.position, c.who, c.step, c.age > 0 AS late,
        coalesce(p.step, greatest(c.base_step, after_step)) AS first
    FROM long_ago g JOIN commits m ON m.position = g.position JOIN contributions c ON c.position = g.position
    LEFT JOIN (SELECT position, who, max_by(step, part) AS step FROM contributions GROUP BY ALL) p
        ON p.position = g.begin AND p.who = c.who
    LEFT JOIN (SELECT who, fragment, version, max_by(after_step, position) AS after_step FROM adoptions
        WHERE mode NOT IN ('bootstrap', 'overwrite') GROUP BY ALL) a
        ON a.who = c.who AND a.fragment = g.fragment AND a.version = m.base_version
    UNION ALL SELECT g.fragment, g.position, who, 8e18::BIGINT, false, base_step
    FROM long_ago g JOIN left_over USING (fragment) WHERE g.version IS NULL
), clocks AS (
    SELECT c.who, c.step, c.place, sum(seconds + waited_s) OVER (PARTITION BY c.who ORDER BY c.step) AS clock
    FROM counted c JOIN steps USING (position) SEMI JOIN parts p ON p.who = c.who
), progress AS (
    SELECT fragment, position, min(coalesce(b.place, 0) - coalesce(a.place, 0)) FILTER (NOT late) AS steps,
        min(coalesce(b.clock, 0.0) - coalesce(a.clock, 0.0)) FILTER (NOT late) AS seconds
    FROM parts p ASOF LEFT JOIN clocks a ON a.who = p.who AND a.step <= p.first
    ASOF LEFT JOIN clocks b ON b.who = p.who AND b.step <= p.step
    GROUP BY ALL
), slow AS (
    SELECT g.*, steps, greatest(0.0, seconds - waited_s) AS seconds
    FROM long_ago g JOIN progress USING (fragment, position), limits WHERE steps > most AND seconds > rate_s + patience_s
), troubled AS (
    SELECT s.*, count(DISTINCT trouble) AS troubles
    FROM slow s LEFT JOIN turns t
        ON t.position > coalesce(s.begin, -1) AND t.position <= s.position AND kind <> 'StoreWaited'
    GROUP BY ALL
)
SELECT position + if(version IS NULL, fragment, 0) AS position, calm, format('fragment {} had no commit for {:.1f} s after {}, while each of those that could take part '
    'finished {} steps; allowed are {} steps or {:.1f} s', fragment, seconds,
    coalesce('version ' || since, 'the start'), steps, most, allowed_s) AS told
FROM (SELECT *, rate_s + (1 + troubles) * patience_s AS allowed_s FROM troubled, limits)
WHERE seconds > allowed_s AND (undated OR dated_s > allowed_s);

-- Between two commits of a fragment each participant of the second has finished some steps. A gap is too long if each of
-- them finished more than 3 (H + tau) in it, and took for them, by its own monotonic clock, more than
--     3 (H + tau) x the slowest learner's median step + H x the longest grace + (1 + troubles) x patience
-- seconds, and if the syncer's own times agree, unless they run backwards.
-- check: live.rate
-- claim: while K learners are alive every fragment commits within stated numbers of their steps and seconds
-- checked: gaps between commits = FROM gaps WHERE calm
SELECT position, told FROM too_long WHERE calm;

-- check: live.recovery
-- claim: after any trouble every fragment commits again within a stated time
-- checked: gaps with trouble = FROM gaps WHERE NOT calm
-- idle: whenever there was trouble, fewer than K learners may have been alive = FROM gaps WHERE calm AND EXISTS (FROM turns WHERE loses)
-- idle: nothing went wrong = FROM gaps WHERE calm
SELECT position, told FROM too_long WHERE NOT calm;
