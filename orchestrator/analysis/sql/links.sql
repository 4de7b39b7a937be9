-- How contributions travel is told before it changes. An answer may have an older format of its link if it was asked for
-- before the change, up to H - 1 steps ahead.

-- The changes, with what the link was at, and the newest syncer step that was asked for in that format. Another epoch
-- begins at the run's format.
CREATE OR REPLACE TEMP TABLE links AS
SELECT l.*, coalesce(o.syncer_step, 0) + round_steps - 1 AS asked FROM (
    SELECT l.* EXCLUDE (told_in, t, sequence), round_steps,
        coalesce(lag(l.codec) OVER w, nullif(r.codec, ''), codec_before) AS codec_was
    FROM LinkAdapted l LEFT JOIN rules r USING (told_by)
    WINDOW w AS (PARTITION BY told_by, learner, incarnation ORDER BY l.position)
) l ASOF LEFT JOIN opened o ON o.position < l.position;

-- The contributions in a format of their own, or after a change: with their format and that of their link.
CREATE OR REPLACE TEMP TABLE sent AS
SELECT c.position, c.place, c.learner, c.incarnation, c.told_by, c.syncer_step, coalesce(nullif(c.codec, ''), r.codec) AS codec,
    coalesce(l.codec, r.codec) AS now, coalesce(l.codec, '') AS also
FROM contributions c LEFT JOIN rules r USING (told_by)
LEFT JOIN (SELECT told_by, min(position) AS changed FROM links GROUP BY ALL) USING (told_by)
ASOF LEFT JOIN links l ON l.told_by = c.told_by AND l.learner = c.learner AND l.incarnation = c.incarnation
    AND l.position < c.position
WHERE c.codec <> '' OR c.position > changed;

-- check: links.formats
-- claim: a contribution has the number format of its learner's link, which the log told before
-- checked: contributions = FROM sent
-- idle: no link was adapted = FROM commits
SELECT place AS position, format('{} {} at syncer step {} sent {}; its link was at [{}]', learner, incarnation, syncer_step,
    s.codec, array_to_string(list_transform(list_sort(list_distinct(list_concat([now, also], older))),
    lambda each: format('''{}''', each)), ', ')) AS told
FROM (
    SELECT s.*, list(l.codec_was) FILTER (l.position IS NOT NULL) AS older
    FROM sent s LEFT JOIN links l ON l.told_by = s.told_by AND l.learner = s.learner AND l.incarnation = s.incarnation
        AND l.position < s.position AND l.asked >= s.syncer_step
    WHERE s.codec NOT IN (now, also) GROUP BY ALL
) s WHERE coalesce(NOT list_contains(older, s.codec), true);

-- check: links.changes
-- claim: each change of a link follows from the one before, and has a reason
-- checked: changes = FROM links
-- idle: no link was adapted = FROM commits
SELECT position, format('{} {} changes from {}; it was at {}', learner, incarnation, codec_before, codec_was) AS told
FROM links WHERE codec_was <> codec_before
UNION ALL
SELECT position, format('{} {} changes to what it has, or without a reason', learner, incarnation)
FROM links WHERE codec_was = codec OR reason = '';
