-- Samples: who was lent them, read them and gave them back.

-- Grants and returns, each once: a new epoch that starts from too little tells some of them again.
CREATE OR REPLACE TEMP TABLE loans AS
SELECT position, t, who, kind, span, start, stop, batch_size, learner, incarnation,
    format('samples {} to {} (span {} of {} {})', start, stop, span, learner, incarnation) AS words
FROM (
    SELECT position, told_by, t, kind, unnest(from_json(fact, '{"learner": "VARCHAR", "incarnation": "BIGINT",
        "span": "BIGINT", "start": "BIGINT", "stop": "BIGINT", "batch_size": "BIGINT"}'))
    FROM (SELECT * RENAME (incarnation AS told_by) FROM facts
        WHERE writer = 'syncer' AND kind IN ('SpanGranted', 'SpanReturned', 'SetAside'))
) JOIN incarnations USING (learner, incarnation)
QUALIFY told_by <= first_value(told_by) OVER (
    PARTITION BY who, span, if(kind = 'SpanGranted', NULL, start) ORDER BY position);

-- What each incarnation's steps say of its pace.
CREATE OR REPLACE TEMP TABLE paces AS
SELECT who, count(*) AS steps, min(seconds) FILTER (seconds > 0.0) AS fastest_s, max(t) AS heard,
    max(step) AS newest,
    -quantile_disc(-seconds, 0.5) AS median_s
FROM steps GROUP BY who;

-- Cut where any grant or return begins or ends, the samples fall into pieces. Of each piece the facts alternate: it is
-- granted, then returned by the incarnation that had it, as part of the same span. Samples of committed steps never
-- return, so they stay lent, and with them all spans before; those that are set aside do not count as returned.
-- check: books.loans
-- claim: a sample is lent to one incarnation at a time, and returned once, by the one that had it
-- checked: grants and returns = FROM loans
WITH cuts AS (
    SELECT cut, row_number() OVER (ORDER BY cut) AS place
    FROM (SELECT start AS cut FROM loans UNION SELECT stop FROM loans)
), pieces AS (
    SELECT loans.*, unnest(range(a.place, greatest(b.place, a.place + 1))) AS piece
    FROM loans JOIN cuts a ON a.cut = start JOIN cuts b ON b.cut = stop
), turns AS (
    SELECT *, lag(pieces) OVER (PARTITION BY piece ORDER BY position) AS before FROM pieces
)
SELECT position, CASE WHEN kind <> 'SpanGranted' THEN format('{} were returned, but not lent', words)
    ELSE format('{} were granted while {} were lent', words, arg_min(if(before.kind = 'SpanGranted', before.words,
        format('samples {} to {}, which were used,', before.start, before.stop)), piece)) END AS told
FROM turns
WHERE CASE WHEN kind = 'SpanGranted' THEN before.kind <> 'SpanReturned'
    ELSE start >= stop OR (before.kind, before.who, before.span) IS DISTINCT FROM ('SpanGranted', who, span)
        OR position IN (SELECT r.position FROM loans r ASOF JOIN contributions c ON c.who = r.who AND c.place < r.position
            JOIN steps s ON s.who = c.who AND s.step = c.step WHERE r.kind = 'SpanReturned' AND s.span > r.span) END
GROUP BY position, kind, words;

-- A step reads its samples in the order of its span. A new epoch may grant a span's number again.
-- check: books.positions
-- claim: a step reads samples of a span granted to its incarnation, each once
-- checked: steps = FROM steps
SELECT position, format('step {} of {} {} at sample {} {}', step, learner, incarnation, sample, wrong) AS told
FROM (
    SELECT position, who, step, sample, format('lies outside every span {} granted to it', span) AS wrong
    FROM steps ANTI JOIN loans ON kind = 'SpanGranted' AND loans.who = steps.who AND loans.span = steps.span
        AND sample >= start AND sample < stop
    UNION ALL
    SELECT position, who, step, sample, 'goes back to samples it has had' FROM steps
    QUALIFY sample <= lag(sample) OVER (PARTITION BY who, span ORDER BY position)
) JOIN incarnations USING (who);

-- A learner asks for a span when it holds half of one or less, or too little for data.ahead_s at its fastest step. It may
-- have begun spans in steps that the log does not tell of: the last 5 s before it died, or those between its newest known
-- step and the end of the log, or its end in order, 5 s at most; and the spans before one that it has begun, where facts
-- of it are lost.
-- check: bounded.spans
-- claim: no learner is lent more than a span and a half ahead, or more than lasts for data.ahead_s
-- checked: borrowers = FROM (SELECT DISTINCT who FROM loans WHERE kind = 'SpanGranted')
WITH begun AS (
    SELECT who, span FROM loans SEMI JOIN steps USING (who, span)
), lost AS (
    SELECT who, max(span) AS span FROM begun SEMI JOIN incomplete USING (who) GROUP BY who
), ends AS (
    SELECT learner, incarnation, bool_or(reason NOT IN ('drained', 'stopped')) AS died,
        min(t) FILTER (reason IN ('drained', 'stopped')) AS left_at
    FROM (SELECT learner, incarnation, reason, t FROM LearnerFenced
        UNION ALL SELECT learner, incarnation, '', t FROM LearnerLost)
    GROUP BY ALL
), borrowers AS (
    SELECT l.who, learner, incarnation, min(l.position) AS position, max(batch_size) AS batch_size, min(l.t) AS lent_at,
        sum(stop - start) FILTER (begun.who IS NULL AND l.span >= coalesce(lost.span, l.span)) AS ahead
    FROM loans l LEFT JOIN (SELECT DISTINCT who, span FROM begun) begun USING (who, span) LEFT JOIN lost USING (who)
    WHERE kind = 'SpanGranted' GROUP BY ALL
), log AS (
    SELECT (SELECT max(t) FROM facts WHERE writer IN ('syncer', 'orchestrator')) AS facts_end,
        (SELECT max(t) FROM commits) AS commits_end, (SELECT max(ahead_s) FROM rules) AS ahead_s,
        (SELECT min(fastest_s) FROM paces) AS fastest_s,
        (SELECT max(stop - start) FROM loans WHERE kind = 'SpanGranted') AS largest
)
SELECT position, format('{} {} was lent {} samples in spans that it never began', learner, incarnation, ahead) AS told
FROM (
    SELECT borrowers.*, log.ahead_s, largest, coalesce(died, false) AS died,
        coalesce(min(paces.fastest_s) OVER (PARTITION BY learner), log.fastest_s) AS fastest_s,
        least(greatest(facts_end, commits_end), left_at) - greatest(lent_at, heard) AS silent_s
    FROM borrowers CROSS JOIN log LEFT JOIN paces USING (who) LEFT JOIN ends USING (learner, incarnation)
)
WHERE ahead > 1.5 * largest
    + coalesce((coalesce(ahead_s, 0.0) + if(died OR silent_s < 0.0, 5.0, least(silent_s, 5.0))) / fastest_s, 0.0) * batch_size;
