-- end_digest.lua: records what became of a digest that was claimed.
--
-- KEYS
--   1  calls   sorted set: call that granted something -> its time
--   2  due     sorted set: channel -> when its digest is to be claimed
--   3  counts  hash: the counts of the channel, see parts/digests.lua
--
-- ARGV
--   channel, claim
--   done: the digest is over; failed: it was not posted, and is claimed again later, with what is counted by then; or
--   doubt: it may have been posted, so its counts go into the next digest
--   again: time after which it is claimed again, where it failed; 1 if that counts as a failure, else 0
--   interval, quiet, kept (see count_drops.lua; times in microseconds)
--
-- Returns 1, or 0 if that claim is over, or recorded as failed, already: a repeated call changes nothing. Whoever knows what
-- became of a digest is believed also after the lease has lapsed.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is changed.

local calls_key, due_key, counts_key = KEYS[1], KEYS[2], KEYS[3]
local channel, claim, state = ARGV[1], ARGV[2], ARGV[3]
local again, failures = tonumber(ARGV[4]), tonumber(ARGV[5])
local interval, quiet, kept = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local now = deployment_time(calls_key)
redis.call('ZCARD', due_key)
local claimed = read_claimed(redis.call('HGET', counts_key, CLAIMED))
if not claimed or claimed.claim ~= claim or claimed.state == 'failed' then
  return 0
end
local head = read_numbers(redis.call('HGET', counts_key, HEAD), HEAD_NAMES)
if state == 'done' then
  claimed = nil
else
  claimed.state = state
  if state == 'failed' then
    claimed.lease_end, claimed.failures = now + again, claimed.failures + failures
  end
end

check_rights(due_key, kept)
redis.call('ZADD', due_key, 'XX', 0, '')
if claimed then
  redis.call('HSET', counts_key, CLAIMED, claimed_text(claimed))
else
  redis.call('HDEL', counts_key, CLAIMED)
end
redis.call('PEXPIRE', counts_key, milliseconds(kept))
set_due(due_key, channel, channel_due(head, claimed, interval, quiet))
redis.call('PEXPIRE', due_key, milliseconds(kept))
return 1
