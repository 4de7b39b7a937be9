-- What the families of checks use.

-- `read_before`: the step at which the incarnation was read for the fragment before. `place`: in the log, each its own.
CREATE OR REPLACE TEMP TABLE merges AS
SELECT p.*, position + part / 1e4 AS place, c.epoch, c.base_version, learner, incarnation,
    lag(step) OVER (PARTITION BY who, p.fragment ORDER BY position, part) AS read_before
FROM contributions_told p JOIN commits c USING (position) JOIN incarnations USING (who);

CREATE OR REPLACE TEMP TABLE opened AS SELECT position, told_by, syncer_step, fragment FROM StepOpened;

-- The commits in the log's order: with the newest opening of the step, the commit before and the fragment's before.
CREATE OR REPLACE TEMP TABLE chained AS
SELECT c.*, o.position AS opened_at, o.fragment AS due, lag(c.epoch) OVER w AS epoch_before,
    lag(c.syncer_step) OVER w AS step_before, lag(c.tokens_committed) OVER w AS tokens_before,
    lag(c.syncer_step, 1, 0) OVER (PARTITION BY c.fragment ORDER BY c.position) AS version_before
FROM commits c ASOF LEFT JOIN opened o ON o.syncer_step = c.syncer_step AND o.position < c.position
WINDOW w AS (ORDER BY c.position);

-- The steps in the log's order, with the one before; and those that ascend, with how many steps and tokens of the
-- incarnation the log has up to each.
CREATE OR REPLACE TEMP TABLE stepped AS
SELECT position, who, step, tokens, lag(step) OVER w AS before,
    max(step) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
FROM steps WINDOW w AS (PARTITION BY who ORDER BY position);

CREATE OR REPLACE TEMP TABLE known AS
SELECT position, who, step, row_number() OVER w AS count, sum(tokens) OVER w AS upto
FROM stepped WHERE step > coalesce(reached, step - 1) WINDOW w AS (PARTITION BY who ORDER BY step);

-- The incarnations of which facts were lost, and where each first attached.
CREATE OR REPLACE TEMP TABLE incomplete AS
SELECT DISTINCT who FROM FactsLost l JOIN incarnations i ON i.learner = l.writer AND i.incarnation = l.incarnation;

CREATE OR REPLACE TEMP TABLE attached AS
SELECT learner, incarnation, min(position) AS attached_at FROM LearnerAttached GROUP BY ALL;

CREATE OR REPLACE TEMP MACRO named(c) AS
    format('{} {} in fragment {} at syncer step {}', c.learner, c.incarnation, c.fragment, c.syncer_step);
