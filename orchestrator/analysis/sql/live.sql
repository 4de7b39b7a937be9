-- While K learners are alive every fragment keeps committing, and it does so again after a fault.

-- The newest settings, and the limits of a gap between two commits of a fragment: `most` steps of each that took part,
-- 3 (H + tau), and `allowed_s` seconds: 3 (H + tau) times the slowest learner's median step, H times the longest grace,
-- and `patience_s`, which each trouble adds once more: a read timeout, a lease and 1 s to resend.
CREATE OR REPLACE TEMP TABLE limits AS
SELECT count, quorum, 3 * (round_steps + overlap_steps) AS most, read_timeout_s
        + greatest(0, 4 * list_max(sizes) - (1 << 20)) / (4 << 20) + greatest(lease_s, 5.0 * slowest_s) + 1.0
        AS patience_s, most * slowest_s + round_steps * grace_s + patience_s AS allowed_s,
    -- The first Finished after the last commit: nothing commits after it.
    (SELECT coalesce(min(position), 8e18::BIGINT) FROM facts WHERE kind = 'Finished'
        AND position > coalesce((SELECT max(position) FROM commits), -1)) AS closing
FROM (SELECT coalesce(max(median_s), 0.0) AS slowest_s FROM paces WHERE steps >= 3),
    (SELECT coalesce(max(grace_s), 0.0) AS grace_s FROM commits), rules
ORDER BY rules.position DESC LIMIT 1;

-- The syncer's facts, its commits, the faults, failed downloads and the waits for a store that was away. `trouble`: a
-- name for what is no routine; what a step may repeat has one by kind and syncer step, a download one by its version,
-- and an epoch that was lost, which may not have lived to say that it began, the same as the next one's beginning.
CREATE OR REPLACE TEMP TABLE turns AS
SELECT position, if(writer = 'syncer' AND kind <> 'StoreWaited', t, NULL) AS t, incarnation AS epoch, kind,
    coalesce(fact->>'$.learner', fact->>'$.target') AS learner, TRY_CAST(fact->>'$.incarnation' AS BIGINT) AS incarnation,
    kind IN ('LeaseExpired', 'LearnerFenced', 'Quarantined', 'DrainStarted') AS loses,
    CASE kind WHEN 'StoreWaited' THEN TRY_CAST(fact->>'$.seconds' AS DOUBLE) END AS waited_s,
    CASE WHEN kind IN ('StepReopened', 'ReadFailed', 'Refused')
            THEN kind || coalesce(fact->>'$.syncer_step', learner || ' ' || incarnation || (fact->>'$.reason'))
        WHEN kind = 'AdoptionRefused' THEN kind || writer || (fact->>'$.version')
        WHEN kind = 'SyncerLost' THEN 'epoch ' || (fact->>'$.epoch')
        WHEN kind = 'SyncerStarted' THEN 'epoch ' || (incarnation - 1)
        WHEN kind NOT IN ('SpanGranted', 'SpanReturned', 'StepOpened', 'StepPassed', 'Finished', 'StoreWaited')
            THEN position::VARCHAR END AS trouble
FROM facts
WHERE writer = 'syncer' OR kind IN ('StoreWaited', 'SyncerLost', 'FaultInjected', 'FaultHealed')
    OR kind = 'AdoptionRefused' AND fact->>'$.reason' = 'fetch_failed'
UNION ALL BY NAME SELECT position, t, told_by AS epoch, 'Committed' AS kind, 0.0 AS waited_s, fragment,
    syncer_step AS version, base_version AS base FROM commits;

-- Who can still take part at the end: who has stepped, and took part in the fragment's last commit, if there is one.
CREATE OR REPLACE TEMP TABLE staying AS
SELECT fragment, who, newest, step
FROM (SELECT unnest(range(count)) AS fragment FROM limits)
LEFT JOIN (SELECT fragment, max(position) AS position FROM commits GROUP BY ALL) USING (fragment)
CROSS JOIN (FROM roster JOIN paces USING (who) WHERE coalesce(over, 'stopped') = 'stopped')
LEFT JOIN contributions c USING (position, who, fragment) WHERE position IS NULL OR step IS NOT NULL;

-- The gaps from each commit of a fragment to its next, from the start to the first, and from the last to the end, in
-- which K learners, at least, may have been healthy: alive by the syncer's facts at its beginning, without a fault that
-- prevents contributions, and not lost since. A learner is alive from attaching, or from renewing its lease, until its
-- next such fact, its leaving or losing its lease, or the syncer's next epoch. `calm`: it is judged as the rate.
-- Time for which the store was away does not count.
CREATE OR REPLACE TEMP TABLE gaps AS
WITH alive AS (
    SELECT position, learner, incarnation, least(
        lead(position) OVER (PARTITION BY learner, kind IN ('LearnerAttached', 'LeaseRenewed') ORDER BY position),
        lead(if(loses, position, NULL) IGNORE NULLS) OVER (PARTITION BY learner, incarnation ORDER BY position),
        lead(if(kind = 'SyncerStarted', position, NULL) IGNORE NULLS) OVER (ORDER BY position), 9e18::BIGINT) AS until
    FROM turns WHERE trouble IS NOT NULL QUALIFY kind IN ('LearnerAttached', 'LeaseRenewed')
), marks AS (
    SELECT *, coalesce(sum(change) OVER so_far, 0) AS living, sum(loses::BIGINT) OVER so_far AS lost,
        count(trouble) OVER so_far AS troubles, sum(waited_s) OVER so_far AS waited
    FROM (
        FROM turns WHERE trouble IS NOT NULL OR waited_s IS NOT NULL
        UNION ALL BY NAME SELECT unnest([position, until]) AS position, unnest([1, -1]) AS change FROM alive
        UNION ALL BY NAME SELECT closing AS position, t, epoch, 0.0 AS waited_s, fragment FROM (
            SELECT closing, quorum, max_by(t, position) AS t, max_by(epoch, position) AS epoch FROM turns, limits
            WHERE t IS NOT NULL AND position <= closing GROUP BY ALL HAVING bool_or(kind IN ('Committed', 'Finished'))
        ) JOIN (SELECT fragment, count(*) AS learners FROM staying GROUP BY ALL) ON learners >= quorum
    )
    WINDOW so_far AS (ORDER BY position) QUALIFY fragment IS NOT NULL
), pairs AS (
    SELECT fragment, position, epoch, version, base,
        lag(position) OVER turns AS begin, lag(version) OVER turns AS since,
        waited - lag(waited, 1, 0.0) OVER turns AS waited_s,
        if(epoch = lag(epoch) OVER turns, t - lag(t) OVER turns - waited_s, NULL) AS dated_s,
        begin IS NULL OR troubles = lag(troubles) OVER turns AS calm,
        lag(living) OVER turns - coalesce(lost - lag(lost, 1, 0) OVER turns, 0) AS healthy
    FROM marks WINDOW turns AS (PARTITION BY fragment ORDER BY position)
)
SELECT p.* EXCLUDE (healthy)
FROM pairs p LEFT JOIN (
    SELECT p.fragment, p.position, count(DISTINCT a.learner) AS faulty
    FROM injected i JOIN alive a ON a.learner = target AND a.incarnation = i.incarnation
    JOIN pairs p ON p.begin >= a.position AND p.begin < a.until AND p.begin <= coalesce(healed_at, p.begin)
        AND p.position >= i.position
    WHERE fault_kind NOT IN ('kill', 'wrong_config', 'slow', 'straggle') GROUP BY ALL
) f USING (fragment, position), limits
WHERE begin IS NULL OR healthy - coalesce(faulty, 0) >= quorum;

-- A gap is too long if each participant of the second commit took more than the limits, and if the syncer's own times
-- agree, unless they run backwards. What was done on an old base was there before the gap.
CREATE OR REPLACE TEMP TABLE too_long AS
WITH far AS (
    FROM (
        SELECT g.*, most, allowed_s, patience_s, dated_s IS NULL OR epoch IN (SELECT epoch FROM turns
            WHERE t IS NOT NULL QUALIFY t < lag(t) OVER (PARTITION BY epoch ORDER BY position)) AS undated
        FROM gaps g, limits
    ) WHERE undated OR dated_s > allowed_s
), parts AS (
    SELECT g.position, fragment, most, c.who, coalesce(p.step, greatest(c.base_step, after_step)) AS first,
        c.step AS last
    FROM far g JOIN contributions c USING (position, fragment)
    LEFT JOIN contributions p ON p.position = begin AND p.who = c.who
    LEFT JOIN adoptions a ON (a.who, a.fragment, a.version) = (c.who, c.fragment, base)
        AND mode NOT IN ('bootstrap', 'overwrite')
    WHERE c.age = 0
    UNION ALL SELECT g.position, fragment, most, who, coalesce(step, -1), newest
    FROM far g JOIN staying USING (fragment) WHERE version IS NULL
), slow AS (
    FROM parts QUALIFY min(last - first) OVER (PARTITION BY position, fragment) > most
), clocks AS (
    SELECT c.who, c.step, place, sum(seconds + waited_s) OVER (PARTITION BY c.who ORDER BY c.step) AS clock
    FROM (FROM counted SEMI JOIN slow USING (who)) c JOIN steps USING (position)
), progress AS (
    SELECT s.position, fragment, min(coalesce(b.place, 0) - coalesce(a.place, 0)) AS steps,
        min(coalesce(b.clock, 0.0) - coalesce(a.clock, 0.0)) AS seconds
    FROM slow s ASOF LEFT JOIN clocks a ON a.who = s.who AND a.step <= s.first
    ASOF LEFT JOIN clocks b ON b.who = s.who AND b.step <= s.last GROUP BY ALL
), troubled AS (
    SELECT g.*, steps, greatest(0.0, seconds - g.waited_s) AS spent_s, count(DISTINCT trouble) AS troubles
    FROM progress JOIN far g USING (position, fragment)
    LEFT JOIN turns t ON t.position > coalesce(begin, -1) AND t.position <= g.position
    GROUP BY ALL
)
SELECT position + if(version IS NULL, fragment, 0) AS position, calm, allowed_s + troubles * patience_s AS limit_s,
    format('fragment {} had no commit for {:.1f} s after {}, while each of those that could take part finished {} '
        'steps; allowed are {} steps or {:.1f} s', fragment, spent_s, coalesce('version ' || since, 'the start'),
        steps, most, limit_s) AS told
FROM troubled WHERE steps > most AND spent_s > limit_s AND (undated OR dated_s > limit_s);

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
