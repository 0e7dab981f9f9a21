-- due_digests.lua: lists the channels whose digests are due. Writes nothing.
--
-- A digest becomes due once every instance has reported what it counted until the due time.
--
-- KEYS
--   1   calls           sorted set: nonce of a call that granted something -> its time
--   2   drops:due       sorted set: channel -> when its digest is due to be claimed
--   3   drops:dropping  sorted set: instance that may have unreported counts -> deadline of its next report
--
-- ARGV
--   report_within (see count_drops.lua, microseconds)
--
-- Returns channels, the longest due first.
--
-- Errors: WRONGTYPE.

--@include lib/records lib/digests

local calls_key, due_key, dropping_key, report_within = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])

local upto = complete_until(dropping_key, deployment_time(calls_key), report_within)
return redis.call('ZRANGE', due_key, '-inf', integer(upto), 'BYSCORE', 'LIMIT', 0, PIECE)
