-- What several families of queries use.

-- The syncer's settings, by the epoch that told them. `resumptions`: how often the run had been resumed by then.
CREATE OR REPLACE TEMP TABLE rules AS
SELECT * EXCLUDE (told_in, sequence, fragments, learners), len(sizes) AS count, max(told_by) OVER () AS newest,
    (SELECT count(*) FROM RunResumed r WHERE r.epochs < s.told_by) AS resumptions
FROM SyncerStarted s
QUALIFY row_number() OVER (PARTITION BY told_by ORDER BY position DESC) = 1;

-- The ends: a run that has finished may be resumed with a larger budget, and finishes again.
CREATE OR REPLACE TEMP TABLE finishes AS
SELECT f.position, f.told_by, syncer_step, f.tokens_committed, coalesce(resumptions, 0) AS resumptions
FROM Finished f LEFT JOIN (SELECT told_by, resumptions FROM rules) USING (told_by) WHERE told_in = 'syncer';

-- The commits, each once: a later epoch that starts from too little tells some of an earlier one's again. Two of one
-- epoch are both kept, for the checks to find.
CREATE OR REPLACE TEMP TABLE commits AS
SELECT * FROM commits_told
QUALIFY told_by <= first_value(told_by) OVER (PARTITION BY syncer_step ORDER BY position);

-- Their contributions. `place`: in the log, each its own.
CREATE OR REPLACE TEMP TABLE contributions AS
SELECT p.*, position + part / 1e4 AS place, c.epoch, base_version, learner, incarnation
FROM contributions_told p JOIN commits c USING (position) JOIN incarnations USING (who);
