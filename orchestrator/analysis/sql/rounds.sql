-- By learner: its inner steps in a round, which ends at each commit of a fragment: those between two of its contributions
-- of the fragment, over the rounds between the two. Rounds that it was not in count.
CREATE OR REPLACE TEMP TABLE round_steps AS
WITH numbered AS (
    SELECT position, row_number() OVER (PARTITION BY fragment ORDER BY position) AS round FROM commits
), passed AS (
    SELECT learner, step - lag(step) OVER own AS steps, round - lag(round) OVER own AS rounds
    FROM contributions JOIN numbered USING (position) WHERE weight > 0
    WINDOW own AS (PARTITION BY learner, incarnation, fragment ORDER BY position)
)
SELECT learner, sum(steps) / sum(rounds) AS steps FROM passed WHERE rounds IS NOT NULL GROUP BY learner;
