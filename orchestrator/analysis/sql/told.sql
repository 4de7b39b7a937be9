-- What the families of checks use.

CREATE OR REPLACE TEMP TABLE opened AS SELECT position, told_by, syncer_step, fragment FROM StepOpened;

-- The commits in the log's order: with the newest opening of the step, the commit before and the fragment's before.
CREATE OR REPLACE TEMP TABLE chained AS
WITH openings AS (
    SELECT c.position, max(o.position) AS opened_at, max_by(o.fragment, o.position) AS due
    FROM commits c JOIN opened o ON o.syncer_step = c.syncer_step AND o.position < c.position GROUP BY c.position
)
SELECT position, told_by, epoch, syncer_step, fragment, base_version, live, tokens_committed, opened_at, due,
    lag(epoch) OVER w AS epoch_before, lag(syncer_step) OVER w AS step_before,
    lag(tokens_committed) OVER w AS tokens_before,
    lag(syncer_step, 1, 0) OVER (PARTITION BY fragment ORDER BY position) AS version_before
FROM commits LEFT JOIN openings USING (position)
WINDOW w AS (ORDER BY position);

-- The incarnations of which facts were lost, and where each first attached.
CREATE OR REPLACE TEMP TABLE incomplete AS
SELECT DISTINCT who FROM FactsLost l JOIN incarnations i ON i.learner = l.writer AND i.incarnation = l.incarnation;

CREATE OR REPLACE TEMP TABLE attached AS
SELECT learner, incarnation, min(position) AS attached_at FROM LearnerAttached GROUP BY ALL;

CREATE OR REPLACE TEMP MACRO named(c) AS
    format('{} {} in fragment {} at syncer step {}', c.learner, c.incarnation, c.fragment, c.syncer_step);
