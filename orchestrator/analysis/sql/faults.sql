-- The table of faults: what each injected fault, and each death that none explains, did; how long detection and
-- recovery took, and what it cost. The syncer's epochs that ended are in it, too.

-- Each incarnation's first contribution, and the first of its learner's later incarnations: which, and when.
CREATE OR REPLACE TEMP TABLE contributed AS
SELECT learner, who, first.t AS t, min_by({t: first.t, who: who}, first.position) OVER (
    PARTITION BY learner ORDER BY incarnation ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS later
FROM (SELECT who, min_by({t: t, position: position}, position) AS first
    FROM contributions JOIN commits USING (position) GROUP BY who) RIGHT JOIN roster USING (who);

-- The faults of learners and unexplained deaths, from `t` on. `fatal`: the incarnation ended by it: NaN never heals,
-- and a freeze or a cut link during which it was given up counts as a death. A wrong configuration explains the end of
-- the next incarnation, which was refused for it, too.
CREATE OR REPLACE TEMP TABLE struck AS
WITH hit AS (
    SELECT i.* EXCLUDE (incarnation), coalesce(ends OR (over = 'killed' AND noticed >= i.t AND CASE fault_kind
        WHEN 'freeze' THEN suspension.position = i.position WHEN 'link' THEN noticed <= coalesce(healed, 'infinity')
        ELSE fault_kind = 'non_finite' END), false) AS fatal
    FROM injected i JOIN roster USING (who) WHERE NOT ends OR i.position = kill.position
), refused AS (
    SELECT r.learner, r.incarnation FROM Refused r JOIN roster before
        ON (before.learner, before.incarnation + 1) = (r.learner, r.incarnation)
    WHERE r.reason = 'wrong_config' AND before.kill.kind = 'wrong_config'
), dead AS (
    SELECT who, min(about.position) AS position, any_value(died) AS t, learner, incarnation
    FROM about JOIN roster USING (who) WHERE kind IN ('LearnerFenced', 'LearnerLost') AND over = 'killed'
    GROUP BY who, learner, incarnation
    QUALIFY incarnation >= max(incarnation) OVER (PARTITION BY learner ORDER BY min(about.position))
)
SELECT position, who, t, fault_kind, true AS injected, fatal, healed, target FROM hit
UNION ALL SELECT position, who, t, 'kill', false, true, NULL, learner
FROM dead ANTI JOIN (FROM hit WHERE fatal) USING (who) ANTI JOIN refused USING (learner, incarnation);

-- What first shows a fault: an expired lease, or contributions that are refused or quarantined for it.
CREATE OR REPLACE TEMP TABLE shown AS
WITH signs AS (
    SELECT position, t, who, ['link', 'freeze'] AS kinds FROM expired
    UNION ALL SELECT position, t, who, [CASE reason WHEN 'bad_digest' THEN 'corrupt' ELSE reason END]
    FROM (SELECT position, t, learner, incarnation, reason FROM Refused WHERE reason IN ('bad_digest', 'non_finite')
        UNION ALL SELECT position, t, learner, incarnation, 'non_finite' FROM Quarantined) JOIN incarnations
        USING (learner, incarnation)
)
SELECT s.position, min_by(signs.t, signs.position) AS shown FROM struck s JOIN signs USING (who)
WHERE injected AND signs.position > s.position AND signs.t >= s.t AND list_contains(kinds, fault_kind) GROUP BY ALL;

-- What the faults cost: the steps under a fault that were discarded, and of an incarnation that died those that died
-- with it. A frozen one loses nothing.
CREATE OR REPLACE TEMP TABLE lost_tokens AS
WITH lost AS (
    SELECT who, t, tokens, fate FROM fates SEMI JOIN struck USING (who)
    WHERE fate NOT IN ('committed', 'in_flight', 'run_ended')
)
SELECT s.position, sum(tokens)::BIGINT AS lost FROM struck s JOIN lost USING (who)
WHERE CASE WHEN fault_kind IN ('kill', 'wrong_config', 'freeze') THEN fatal AND fate = 'killed'
    ELSE lost.t BETWEEN s.t AND CASE WHEN fatal THEN 'infinity' ELSE coalesce(healed, 'infinity') END END
GROUP BY ALL;

-- The end of a syncer epoch. One that never came up and said nothing is part of the outage before. No token is lost:
-- what was not committed is read again.
CREATE OR REPLACE TEMP TABLE outages AS
WITH epochs AS (
    SELECT incarnation AS epoch, min(position) AS position FROM facts WHERE writer = 'syncer' GROUP BY ALL
), served AS (
    SELECT epoch, max(t) AS last, min_by(t, position) AS first FROM commits GROUP BY epoch
), acts AS (
    SELECT a.position, any_value(t) AS t, any_value(fault_kind) AS fault_kind, max(e.epoch) AS epoch FROM (
        SELECT position, t, fault_kind, incarnation AS upto FROM injected WHERE target = 'syncer'
        UNION ALL SELECT position, t, NULL, epoch FROM SyncerLost
    ) a JOIN epochs e ON e.epoch <= upto AND e.position < a.position GROUP BY a.position
    HAVING any_value(fault_kind) IS NULL OR max(e.epoch) = any_value(upto)
), ended AS (
    SELECT epoch, min(position) AS position, min_by(if(fault_kind IS NULL, t, NULL), position) AS noticed,
        max_by(if(fault_kind IS NULL, NULL, {kind: fault_kind, t: t}), position) AS fault
    FROM acts GROUP BY epoch
)
SELECT ended.position, fault, noticed, coalesce(fault.t, own.last, noticed) AS t, min(s.t) AS served,
    next.first AS committed
FROM ended LEFT JOIN served own USING (epoch)
    LEFT JOIN SyncerStarted s ON s.told_by > ended.epoch AND s.position > ended.position
    LEFT JOIN (SELECT e.epoch, min_by(first, served.epoch) AS first FROM ended e JOIN served ON served.epoch > e.epoch
        GROUP BY ALL) next ON next.epoch = ended.epoch
GROUP BY ALL;

-- Seconds from the newest milestone reached to this one; NULL where it was not reached, and the next includes its time.
-- One that two clocks put before its predecessor counts as at the same time.
CREATE OR REPLACE TEMP MACRO since(milestone, reached) AS milestone - least(milestone, reached);

-- The rows. A fault that ended no incarnation is followed to the first contribution after it healed; a death to the
-- first one of a later incarnation, through the beginnings of that one, or of the next while there is none. `recent`:
-- it is one of the newest 1,000.
CREATE OR REPLACE TEMP TABLE fault_rows AS
WITH followed AS (
    SELECT s.*, coalesce(lost_tokens.lost, 0) AS lost, CASE WHEN fatal AND over = 'killed' THEN noticed END AS noticed,
        CASE WHEN coalesce(shown <= healed, true) AND NOT (fatal AND fault_kind = 'freeze') THEN shown END AS shown,
        CASE WHEN fatal THEN coalesce(later.who, heir) END AS heir, CASE WHEN fatal THEN later.t END AS contributed
    FROM struck s LEFT JOIN shown USING (position) LEFT JOIN lost_tokens USING (position) JOIN roster USING (who)
        JOIN contributed USING (who)
), healing AS (
    SELECT position, c.t AS again FROM (FROM struck WHERE NOT fatal AND healed IS NOT NULL) s
    ASOF JOIN (SELECT learner, commits.t FROM contributions JOIN commits USING (position)) c
        ON c.learner = s.target AND c.t >= s.healed
), dated AS (
    SELECT f.*, healing.again, least(shown, f.noticed) AS detected, requested, started, compiling, joining, stepping,
        greatest(f.t, detected) AS reached, greatest(reached, requested) AS asked, greatest(asked, started) AS began,
        greatest(began, compiling) AS imported, greatest(imported, joining) AS compiled,
        greatest(compiled, stepping) AS ready
    FROM followed f LEFT JOIN healing USING (position) LEFT JOIN roster h ON f.heir = h.who
), rows AS (
    SELECT position, fault_kind AS kind, target, injected, t, coalesce(contributed, again) - t AS recovery_s,
        since(detected, t) AS detect, since(requested, reached) AS decide, since(started, asked) AS start,
        since(compiling, began) AS import, since(joining, imported) AS compile, since(stepping, compiled) AS state,
        coalesce(since(contributed, ready), again - healed) AS first_contribution,
        CASE WHEN noticed IS NOT NULL OR (NOT fatal AND healed IS NOT NULL) THEN lost END AS tokens_lost
    FROM dated
    UNION ALL SELECT position, coalesce(fault.kind, 'death'), 'syncer', fault IS NOT NULL, t, committed - t,
        noticed - t, NULL, served - noticed, NULL, NULL, NULL, if(noticed IS NULL, NULL, committed - served), 0
    FROM outages
)
SELECT *, detect AS detection_s, t - (SELECT min(t - seconds - waited_s) FROM steps) AS at_s,
    row_number() OVER (ORDER BY t DESC, position DESC) <= 1000 AS recent
FROM rows;
