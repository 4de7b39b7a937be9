-- When a learner is lost or falls silent, the others' steps take as long as before.

-- The losses. Troubles of a host itself are not in the log, so they are judged only where faults were injected.
CREATE OR REPLACE TEMP TABLE lost_learners AS
SELECT position, learner, incarnation, EXISTS (FROM injected) AS judged FROM about JOIN incarnations USING (who)
WHERE kind = 'LeaseExpired' OR kind = 'LearnerFenced' AND reason NOT IN ('stopped', 'drained', 'superseded');

-- Each survivor's 40 steps before a loss and after it, 8 at least of both. They are told apart by the commits on both
-- sides: each names the step at which the survivor was read, so that no clocks are compared. Survivors with faults of
-- their own, by the recorded times, which may differ by 1 s, are left out. Waiting does not count.
CREATE OR REPLACE TEMP TABLE survivors AS
WITH reads AS (
    SELECT l.*, c.step FROM (
        SELECT l.position, l.learner || ' ' || l.incarnation AS lost, who FROM lost_learners l
        JOIN (SELECT who, min(position) AS first, max(position) AS last FROM contributions GROUP BY who) r
            ON l.position > first AND l.position < last
        JOIN incarnations i USING (who) WHERE judged AND i.learner <> l.learner
    ) l ASOF JOIN contributions c ON c.who = l.who AND c.position < l.position
), near AS (
    SELECT r.position, r.who, lost, r.step, unnest(range(steps_to(r.step, s) - 39, steps_to(r.step, s) + 41)) AS place
    FROM reads r ASOF JOIN (FROM stretches WHERE count > 0) s ON s.who = r.who AND s.after < r.step
), around AS (
    SELECT n.position, n.who, lost, min_by(c.t, c.step) AS begin, max_by(c.t, c.step) AS stop,
        -quantile_disc(-seconds, 0.5) FILTER (c.step <= n.step) AS median_before,
        -quantile_disc(-seconds, 0.5) FILTER (c.step > n.step) AS median_after,
        max(seconds) FILTER (c.step <= n.step) AS longest_before, max(seconds) FILTER (c.step > n.step) AS longest_after
    FROM near n ASOF JOIN (FROM stretches WHERE count > 0) s ON s.who = n.who AND s.place < n.place
    JOIN steps c ON c.who = n.who AND c.step = s.after + n.place - s.place
    GROUP BY n.position, n.who, lost
    HAVING count(*) FILTER (c.step <= n.step) >= 8 AND count(*) FILTER (c.step > n.step) >= 8
), troubles AS (
    SELECT who, t, coalesce(until, 'infinity') AS until FROM expired UNION ALL SELECT who, t, until FROM frozen
    UNION ALL SELECT who, t, t + duration_s FROM injected WHERE NOT ends AND fault_kind <> 'freeze'
)
SELECT s.*, format('step of {} {} rose from', learner, incarnation) AS rose
FROM around s JOIN incarnations USING (who)
ANTI JOIN troubles t ON t.who = s.who AND t.t <= stop + 1.0 AND t.until >= begin - 1.0;

-- A survivor was held up if its median step took more than 3 times that of those before and 0.05 s, or its longest more
-- than 3 times their longest and 2 s.
-- check: isolation.steps
-- claim: when a learner is lost or silent, the others' steps take as long as before
-- checked: losses = FROM (SELECT DISTINCT position FROM survivors)
-- idle: no fault was injected: troubles of the hosts are not in the log = FROM lost_learners WHERE NOT judged
-- idle: no learner was lost while others stepped on = FROM commits
SELECT position, format('when {} was lost, {}', any_value(lost), min_by(held_up, who)) AS told
FROM (SELECT *, CASE WHEN median_after > 3.0 * median_before + 0.05
            THEN format('the median {} {:.3f} s to {:.3f} s', rose, median_before, median_after)
        WHEN longest_after > 3.0 * longest_before + 2.0
            THEN format('the longest {} {:.3f} s to {:.3f} s', rose, longest_before, longest_after) END AS held_up
    FROM survivors)
GROUP BY position HAVING bool_and(held_up IS NOT NULL);
