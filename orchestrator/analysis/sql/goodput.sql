-- How much of the learners' time was of use, and when nothing went on.

-- When an incarnation was alive: attached to the syncer, and neither dead, suspended nor without a lease. When it held
-- a lease: from stepping until it expires, drains, is fenced or lost, and again once it is renewed.
CREATE OR REPLACE TEMP TABLE leased AS
WITH lives AS (
    SELECT who, coalesce(ended, stop) AS over, coalesce(attached, stepping, 'infinity') AS lives,
        coalesce(least(stepping, begun), 'infinity') AS steps, coalesce(least(lost, fenced, draining), stop) AS leaves
    FROM roster, run_window
), without AS (
    SELECT who, x.t, coalesce(x.until, greatest(x.t, over)) AS until FROM expired x JOIN lives USING (who)
), holes AS (
    SELECT who, unnest(['alive', 'alive', 'held', 'held']) AS what,
        unnest(['-infinity', over, '-infinity', leaves]) AS t, unnest([lives, 'infinity', steps, 'infinity']) AS until
    FROM lives
    UNION ALL SELECT who, 'alive', t, until FROM frozen
    UNION ALL SELECT who, unnest(['alive', 'held']), t, until FROM without
    UNION ALL SELECT who, unnest(['alive', 'held']), t, until FROM lives, pauses
)
SELECT who, what, max(until) OVER before AS t, t AS until FROM holes
WINDOW before AS (PARTITION BY who, what ORDER BY t ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
QUALIFY max(until) OVER before < holes.t;

-- Of overlapping intervals each second counts once: alive by learner, while it was wanted; held by anybody.
CREATE OR REPLACE TEMP TABLE covered AS
WITH spans AS (
    SELECT what, CASE what WHEN 'alive' THEN learner END AS learner, greatest(l.t, w.t, start) AS t,
        least(l.until, CASE what WHEN 'alive' THEN w.until END, stop) AS until
    FROM leased l JOIN roster USING (who) JOIN wanted w USING (learner), run_window
)
SELECT what, sum(seconds) AS seconds FROM (
    SELECT what, greatest(0.0, until - greatest(t, max(until) OVER (PARTITION BY what, learner ORDER BY t
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))) AS seconds FROM spans)
GROUP BY what;

-- Shares are of the time in which learners were wanted. Outer downtime: what each gap between commits has beyond two
-- median gaps.
CREATE OR REPLACE TEMP TABLE goodput AS
WITH gaps AS (
    SELECT greatest(0.0, t - before - coalesce((
        SELECT sum(greatest(0.0, least(until, c.t) - greatest(p.t, before))) FROM pauses p), 0.0)) AS gap
    FROM (SELECT t, lag(t) OVER (ORDER BY position) AS before FROM commits) c WHERE before IS NOT NULL
)
SELECT start, stop, paused_s, stop - start - paused_s AS wall_s, wanted_s,
    coalesce((SELECT seconds FROM covered WHERE what = 'alive'), 0.0) / wanted_s AS availability,
    (SELECT sum(seconds) FROM time_accounts WHERE category = 'productive') / wanted_s AS goodput_time,
    wall_s - coalesce((SELECT seconds FROM covered WHERE what = 'held'), 0.0) AS global_downtime_s,
    (SELECT sum(greatest(0.0, gap - 2 * middle)) FROM gaps, (SELECT median(gap) AS middle FROM gaps))
        AS outer_downtime_s
FROM run_window, (SELECT coalesce(sum(greatest(0.0, least(until, stop) - greatest(t, start))), 0.0) AS paused_s
    FROM pauses, run_window), (SELECT sum(wanted_s) AS wanted_s FROM wanted_time) WHERE wanted_s > 0;
