-- One epoch of the syncer, and one incarnation of each learner, may act at a time. What was received before a fence may
-- merge after it; but in no step that opened after the fence, because reads follow the opening. Order is the syncer's
-- own, not the clocks'. A fence binds the epoch that set it; a later one is told anew who lives.

CREATE OR REPLACE TEMP TABLE fenced AS
SELECT told_by, learner, incarnation, min(position) AS fenced_at FROM LearnerFenced GROUP BY ALL;

-- An epoch may repeat an earlier one's commits before it opens a step.
-- check: fencing.epochs
-- claim: one epoch commits at a time, and epochs never fall
-- checked: commits = FROM commits
SELECT position, format('epoch {} committed syncer step {}, epoch {} step {}', epoch, syncer_step, epoch_before,
    step_before) AS told
FROM chained WHERE epoch < epoch_before OR (syncer_step <= step_before AND epoch <> epoch_before)
UNION ALL
SELECT position, format('syncer step {} was committed as epoch {} by epoch {}', syncer_step, epoch, told_by)
FROM commits c LEFT JOIN (SELECT told_by, min(position) AS begun FROM opened GROUP BY told_by) USING (told_by)
WHERE epoch > told_by OR (epoch < told_by AND position > begun)
UNION ALL
SELECT position, format('epoch {} started {} times', epoch, row_number() OVER (PARTITION BY epoch ORDER BY position))
FROM SyncerStarted QUALIFY row_number() OVER (PARTITION BY epoch ORDER BY position) > 1;

-- By fragment: with several steps in flight, an answer received before its sender died may commit after the new
-- incarnation's first contribution to another fragment.
-- check: fencing.incarnations
-- claim: a learner's incarnations attach, and merge into a fragment, in order; none merges that has not attached
-- checked: contributions = FROM contributions
WITH merged AS (
    SELECT learner, incarnation, who, fragment, min(position) AS first, max(position) AS last
    FROM contributions GROUP BY ALL
)
SELECT position, format('{} {} attached after {}', learner, incarnation, newest) AS told
FROM (
    SELECT *, max(incarnation) OVER (PARTITION BY learner ORDER BY position) AS newest FROM LearnerAttached
) WHERE incarnation < newest
UNION ALL
SELECT place, format('{} {} merged at syncer step {} unattached', learner, incarnation, syncer_step)
FROM contributions LEFT JOIN attached USING (learner, incarnation) WHERE coalesce(attached_at > position, true)
UNION ALL
SELECT place, format('{} {} merged at syncer step {}, after {} had', c.learner, c.incarnation, syncer_step, newest)
FROM contributions c JOIN (
    SELECT old.who, old.fragment, new.first, max(new.incarnation) AS newest FROM merged old JOIN merged new
        ON new.learner = old.learner AND new.fragment = old.fragment AND new.incarnation > old.incarnation
        AND new.first < old.last GROUP BY ALL
) m ON m.who = c.who AND m.fragment = c.fragment AND m.first < c.position;

-- A grant is recorded once durable, so one in progress at the fence may follow it, and is then not used.
-- check: fencing.fences
-- claim: a fenced incarnation attaches no more, joins no step opened later and uses nothing lent afterwards
-- checked: commits = FROM commits
SELECT position, format('{} {} attached after it was fenced', learner, incarnation) AS told
FROM LearnerAttached JOIN fenced USING (told_by, learner, incarnation) WHERE position > fenced_at
UNION ALL
SELECT place, format('{} {} merged at syncer step {}, which opened after it was fenced', learner, incarnation,
    c.syncer_step)
FROM contributions c JOIN fenced USING (told_by, learner, incarnation) JOIN (
    SELECT told_by, syncer_step, max(position) AS opened_at FROM opened GROUP BY ALL
) o ON o.told_by = c.told_by AND o.syncer_step = c.syncer_step WHERE fenced_at < least(o.opened_at, c.position)
UNION ALL
SELECT g.position, format('{} {} stepped on span {}, granted after it was fenced', learner, incarnation, g.span)
FROM SpanGranted g JOIN fenced USING (told_by, learner, incarnation) JOIN incarnations i USING (learner, incarnation)
ANTI JOIN repeated r ON r.position = g.position
SEMI JOIN steps s ON s.who = i.who AND s.span = g.span WHERE g.position > fenced_at;
