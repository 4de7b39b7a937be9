-- What several families of queries use.

-- The syncer's settings, by the epoch that told them. `resumptions`: how often the run had been resumed by then.
CREATE OR REPLACE TEMP TABLE rules AS
WITH resumed AS (SELECT list(epochs) AS epochs FROM RunResumed)
SELECT s.* EXCLUDE (told_in, sequence, fragments, learners), len(sizes) AS count, max(told_by) OVER () AS newest,
    coalesce(len(list_filter(resumed.epochs, lambda epoch: epoch < told_by)), 0) AS resumptions
FROM SyncerStarted s, resumed
WHERE position IN (SELECT max(position) FROM facts WHERE kind = 'SyncerStarted' GROUP BY incarnation);

-- The ends: a run that has finished may be resumed with a larger budget, and finishes again.
CREATE OR REPLACE TEMP TABLE finishes AS
SELECT f.position, f.told_by, syncer_step, f.tokens_committed, coalesce(resumptions, 0) AS resumptions
FROM Finished f LEFT JOIN (SELECT told_by, resumptions FROM rules) USING (told_by) WHERE told_in = 'syncer';

-- The commits, each once: a later epoch that starts from too little tells some of an earlier one's again. Two of one
-- epoch are both kept, for the checks to find.
CREATE OR REPLACE TEMP TABLE commits AS
SELECT c.* FROM commits_told c
JOIN (SELECT syncer_step, min_by(told_by, position) AS first FROM commits_told GROUP BY syncer_step) USING (syncer_step)
WHERE told_by <= first;

-- Their contributions. `place`: in the log, each its own.
CREATE OR REPLACE TEMP TABLE contributions AS
SELECT p.*, position + part / 1e4 AS place, c.epoch, base_version, learner, incarnation
FROM contributions_told p JOIN commits c USING (position) JOIN incarnations USING (who);
