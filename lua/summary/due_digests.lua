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
--   report_within, interval (see count_drops.lua), lease of a claimed digest (microseconds)
--   how many channels of each kind to leave out, and how many to return at most
--
-- Returns channels, the longest due first. The last ones are due at a time that no clock can have recorded which is right now.
--
-- Errors: WRONGTYPE.

--@include lib/records lib/digests

local calls_key, due_key, dropping_key = KEYS[1], KEYS[2], KEYS[3]
local report_within, interval, lease = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local from, most = ARGV[4], ARGV[5]

local now = deployment_time(calls_key)
local upto, latest = complete_until(dropping_key, now, report_within), latest_due(now, interval, lease)
local due = redis.call('ZRANGE', due_key, '-inf', integer(upto), 'BYSCORE', 'LIMIT', from, most)
for _, channel in ipairs(redis.call('ZRANGE', due_key, '(' .. integer(latest), '+inf', 'BYSCORE', 'LIMIT', from, most)) do
  due[#due + 1] = channel
end
return due
