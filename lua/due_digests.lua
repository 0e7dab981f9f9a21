-- due_digests.lua: tells which channels are to be told of drops now. It changes nothing.
--
-- KEYS
--   1  calls     sorted set: call that granted something -> its time
--   2  due       sorted set: channel -> when its digest is to be claimed
--   3  dropping  sorted set: instance that may have counts which it has not told -> until when that is believed
--
-- ARGV
--   believed (see count_drops.lua, microseconds)
--
-- Returns channels, those that have been due longest first. A digest waits until every instance has told what it had counted
-- by the time that it was due.
--
-- Errors: WRONGTYPE.

local calls_key, due_key, dropping_key, believed = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])

local upto = all_told_until(dropping_key, deployment_time(calls_key), believed)
return redis.call('ZRANGE', due_key, '-inf', integer(upto), 'BYSCORE', 'LIMIT', 0, PIECE)
