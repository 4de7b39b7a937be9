-- Open syncer steps and reads stay within their limits; spans.sql has the spans. Queues, references in flight, memory
-- and open files are not in the log; their own code limits them.

-- The next epoch opens again what an epoch left open.
-- check: bounded.steps
-- claim: at most max(1, tau) syncer steps are open at a time, or less than a round's
-- checked: syncer steps = FROM opened WHERE (SELECT count(*) FROM rules) > 0
SELECT c.position, format('{} steps are open at syncer step {}', running::BIGINT, syncer_step) AS told FROM (
    SELECT *, sum(change) OVER (PARTITION BY told_by ORDER BY position) AS running FROM (
        SELECT *, opens - lag(opens, 1, 0) OVER (PARTITION BY told_by, syncer_step ORDER BY position) AS change FROM (
            SELECT told_by, syncer_step, position, 1 AS opens FROM opened
            UNION ALL SELECT told_by, syncer_step, position, 0 FROM commits
            UNION ALL SELECT incarnation, (fact->>'$.syncer_step')::BIGINT, position, 0
                FROM facts WHERE kind IN ('StepPassed', 'Finished')
        )
    )
) c JOIN rules USING (told_by) WHERE opens = 1 AND running > greatest(1, overlap_steps, round_steps - 1);

CREATE OR REPLACE TEMP TABLE reads AS
SELECT epoch, syncer_step, max(position) AS position, sum(tried)::BIGINT AS tried, 1 + sum(again)::BIGINT AS attempts
FROM (
    SELECT epoch, syncer_step, position, 1 AS tried, 0 AS again FROM contributions
    UNION ALL SELECT told_by, syncer_step, position, 1, 0 FROM ReadFailed
    UNION ALL SELECT told_by, syncer_step, position, 0, 1 FROM StepReopened
) GROUP BY ALL HAVING sum(tried) > 0;

-- check: bounded.reads
-- claim: a syncer step is read from each learner at most once an attempt
-- checked: steps that were read = FROM reads
SELECT position, format('syncer step {} was read {} times in {} attempts', syncer_step, tried, attempts) AS told
FROM reads LEFT JOIN (
    SELECT told_by AS epoch, count(DISTINCT learner) AS learners FROM LearnerAttached GROUP BY ALL
) USING (epoch) WHERE tried > coalesce(learners, 0) * attempts;
