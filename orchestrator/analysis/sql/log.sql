-- The log tells all that its writers said, and once how the run ended.

-- A writer's facts are in the log in the order of their numbers. A gap is excused if losses that the log tells of fill
-- it, however they follow one another.
-- check: log.sequence
-- claim: each writer's facts are numbered from 0 without a gap that the log does not name, and each number is one fact
-- checked: events = FROM (SELECT 1 FROM steps UNION ALL SELECT 1 FROM adoptions UNION ALL SELECT 1 FROM commits_told UNION ALL SELECT 1 FROM facts)
WITH said AS (
    SELECT *, lag(sequence, 1, -1) OVER (PARTITION BY writer, incarnation ORDER BY position) AS before FROM (
        SELECT learner AS writer, incarnation, position, sequence FROM steps JOIN incarnations USING (who)
        UNION ALL SELECT learner, incarnation, position, sequence FROM adoptions JOIN incarnations USING (who)
        UNION ALL SELECT 'syncer', told_by, position, sequence FROM commits_told
        UNION ALL SELECT writer, incarnation, position, sequence FROM facts
    ) QUALIFY sequence <> before + 1
), losses AS (
    SELECT writer, incarnation, list({first: first, last: last} ORDER BY first, last) AS gone
    FROM FactsLost GROUP BY ALL
)
SELECT position, CASE WHEN sequence <= before
    THEN format('{} {} tells fact {} after fact {}', writer, incarnation, sequence, before)
    ELSE format('{} {} goes from fact {} to fact {}', writer, incarnation, before, sequence) END AS told
FROM said LEFT JOIN losses USING (writer, incarnation)
WHERE sequence <= before OR gone IS NULL OR sequence > list_reduce(gone,
    lambda x, each: CASE WHEN x.last BETWEEN each.first AND each.last THEN {first: 0, last: each.last + 1} ELSE x END,
    {first: 0, last: before + 1}).last;

-- check: log.ending
-- claim: a run that reached its budget ends with one RunFinished, and only such a run is called finished
-- checked: end of the run = FROM RunFinished
SELECT place AS position, told FROM (
    SELECT max_by(syncer_step, position) AS step FROM Finished
), (
    SELECT count(*) AS ended, count(*) FILTER (state = 'finished') AS finished FROM RunFinished
), (SELECT count(*) AS resumed FROM RunResumed), LATERAL (VALUES
    (1, ended = 0 AND step IS NOT NULL, format('the syncer finished at step {}, but the run never did', step)),
    (2, ended > 1 + resumed, format('the run finished {} times, and was resumed {} times', ended, resumed)),
    (3, finished > 0 AND step IS NULL, 'the run is called finished, but its syncer never reached the budget')
) AS ends(place, broken, told) WHERE broken;
