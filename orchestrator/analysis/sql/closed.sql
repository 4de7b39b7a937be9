-- A refused message changes nothing, and its sender is told why. Only refusals by the syncer are in the log.

CREATE OR REPLACE TEMP TABLE refused_messages AS SELECT position, learner, incarnation, message, reason, detail FROM Refused;

-- check: closed.refusals
-- claim: every refusal has a reason, and that of a configuration names the fields that differ
-- checked: refusals = FROM refused_messages
-- idle: nothing was refused = FROM commits
WITH reasons(message, reasons) AS (VALUES
    ('expect', ['stale_incarnation']),
    ('attach', ['malformed', 'unknown_learner', 'stale_incarnation', 'wrong_config']),
    ('seek', ['malformed', 'unknown_learner', 'stale_incarnation', 'stale_epoch']),
    ('report', ['malformed', 'unknown_learner', 'stale_incarnation', 'stale_epoch', 'wrong_counters']),
    ('contribution', ['malformed', 'unknown_learner', 'stale_incarnation', 'stale_epoch', 'stale_base', 'doubled', 'late',
        'bad_digest', 'non_finite', 'wrong_sender', 'wrong_shape', 'wrong_fragment', 'wrong_counters'])
)
SELECT position, format('a {} of {} {} was refused for {}', message, learner, incarnation, CASE
    WHEN reason = 'wrong_config' AND reason IN reasons THEN 'its configuration, and no field was named'
    ELSE format('''{}'', which is no reason', reason) END) AS told
FROM refused_messages LEFT JOIN reasons USING (message)
WHERE coalesce(reason NOT IN reasons, true)
    OR (reason = 'wrong_config' AND NOT regexp_matches(detail, '^\S+: here .+, there .+'));

-- A refused incarnation takes part in nothing, in any epoch, until one admits it.
-- check: closed.strangers
-- claim: an incarnation that was refused when attaching is lent nothing and merges into nothing
-- checked: refused incarnations = FROM (SELECT DISTINCT learner, incarnation FROM refused_messages WHERE message = 'attach')
-- idle: nobody was refused = FROM commits
WITH strangers AS (
    SELECT learner, incarnation, min(position) AS refused_at, any_value(attached_at) AS attached_at
    FROM refused_messages LEFT JOIN attached USING (learner, incarnation) WHERE message = 'attach' GROUP BY ALL
)
SELECT position, format('{} {} was refused, and merged at syncer step {}', learner, incarnation, syncer_step) AS told
FROM contributions JOIN strangers USING (learner, incarnation) WHERE coalesce(attached_at > position, true)
UNION ALL
SELECT position, format('{} {} was refused, and lent span {}', learner, incarnation, span)
FROM SpanGranted JOIN strangers USING (learner, incarnation) ANTI JOIN repeated USING (position)
WHERE position > refused_at AND coalesce(attached_at > position, true);
