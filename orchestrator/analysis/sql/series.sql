-- What the report draws and tabulates beside the summary. Times are Unix seconds.

-- When each commit was, and the tokens committed by then: of a long run some 4,000 of them, and the last.
CREATE OR REPLACE TEMP TABLE curve AS
SELECT t, tokens_committed FROM commits
QUALIFY (row_number() OVER (ORDER BY position) - 1) % (1 + count(*) OVER () // 4096) = 0
     OR position = max(position) OVER ()
ORDER BY position;

-- Training losses as at most 240 neighbourhoods of at least 8 steps: the median, and what 10 % and 90 % are below.
CREATE OR REPLACE TEMP TABLE training AS
WITH placed AS (
    SELECT t, loss, count(*) OVER () AS n, row_number() OVER (ORDER BY t, position) AS place
    FROM steps WHERE isfinite(loss)
)
SELECT avg(t) AS t, quantile_disc(loss, [0.5, 0.1, 0.9]) AS shares
FROM placed GROUP BY (place * least(240, (n + 7) // 8) - 1) // n ORDER BY 1;

-- The task's auxiliary values: means over the first tenth of the steps, the last, and all.
CREATE OR REPLACE TEMP TABLE auxiliaries AS
WITH told AS (
    SELECT t, position, key AS name, (value->>'$')::DOUBLE AS number FROM steps, json_each(aux) WHERE aux IS NOT NULL
), placed AS (
    SELECT name, number, (row_number() OVER w * least(10, count(*) OVER names) - 1) // count(*) OVER names AS bin
    FROM told WHERE isfinite(number) WINDOW w AS (PARTITION BY name ORDER BY t, position), names AS (PARTITION BY name)
)
SELECT name, avg(number) FILTER (bin = 0) AS first, avg(number) FILTER (bin = last) AS last, avg(number) AS whole
FROM (SELECT *, max(bin) OVER (PARTITION BY name) AS last FROM placed) GROUP BY name ORDER BY name LIMIT 64;

-- The parts of an outer step: opening to the K-th report, the grace waited after it, decision to durable.
CREATE OR REPLACE TEMP TABLE waits AS
SELECT quantile_disc(seconds, [0.5, 0.95, 1.0]) || [avg(seconds)] AS shares
FROM (UNPIVOT commits ON quorum_s, grace_s, sync_s INTO NAME part VALUE seconds)
WHERE isfinite(seconds)
GROUP BY part ORDER BY list_position(['quorum_s', 'grace_s', 'sync_s'], part);

-- The first and the last fact, the beginning of the first step, waiting included; steps, and those without a finite loss.
CREATE OR REPLACE TEMP TABLE extent AS
SELECT * FROM (SELECT min(first) AS first, max(last) AS last FROM (
        SELECT min(t) AS first, max(t) AS last FROM facts UNION ALL SELECT min(t), max(t) FROM commits_told
        UNION ALL SELECT min(t), max(t) FROM steps UNION ALL SELECT min(t), max(t) FROM adoptions)),
    (SELECT min(t - seconds - waited_s) AS stepped, count(*) AS steps, count(*) FILTER (NOT isfinite(loss)) FROM steps);

-- Held-out losses, by the syncer step of the parameters: when these were committed, and the tokens committed by then.
CREATE OR REPLACE TEMP TABLE held_out AS
WITH told AS (
    SELECT syncer_step AS step, max_by(loss, position) AS loss FROM Evaluated WHERE isfinite(loss) GROUP BY syncer_step
)
SELECT step, t, coalesce(tokens_committed, 0) AS tokens, loss FROM told ASOF LEFT JOIN commits ON step >= syncer_step
QUALIFY (row_number() OVER (ORDER BY step) - 1) % (1 + count(*) OVER () // 512) = 0 OR step = max(step) OVER ();

-- Every learner that was ever wanted, in order of appearance.
CREATE OR REPLACE TEMP TABLE learners AS
SELECT learner FROM wanted GROUP BY learner ORDER BY min({position: position, part: part});

-- The time accounts, of the learners that were wanted first.
CREATE OR REPLACE TEMP TABLE spent AS
SELECT learner, category, seconds FROM time_accounts JOIN wanted_time USING (learner) ORDER BY place, rank;
