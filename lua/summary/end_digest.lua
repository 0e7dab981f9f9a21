-- end_digest.lua: records the result of a claimed digest.
--
-- KEYS
--   1   calls           sorted set: nonce of a call that granted something -> its time
--   2   drops:due       sorted set: channel -> when its digest is due to be claimed
--   3   drops:counts:…  hash: the counts of the channel (see lib/digests.lua)
--
-- ARGV
--   channel, claim
--   state: done, the digest has ended; failed, it was not posted and can be claimed again with newer counts; doubt, it may have
--   been posted, and an instance is to look for it; carried, it may have been posted, and the next digest takes its counts over
--   time until it can be claimed again (failed) or is worth a look (doubt); 1 if that counts as a failure, otherwise 0
--   interval, quiet, kept (see count_drops.lua; times in microseconds)
--
-- Returns 1, and 0 without a change if the claim has ended or is recorded as failed. The caller's state
-- counts after the lease has lapsed too.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is changed.

--@include lib/records lib/digests

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
local head = read_head(redis.call('HGET', counts_key, HEAD), now, interval)
if state == 'done' then
  claimed = nil
else
  claimed.state = state
  claimed.lease_end, claimed.failures = now + again, claimed.failures + failures
end

check_due(due_key, kept)
if claimed then
  redis.call('HSET', counts_key, CLAIMED, claimed_text(claimed))
else
  redis.call('HDEL', counts_key, CLAIMED, MUTED_KEYS)
end
redis.call('PEXPIRE', counts_key, milliseconds(kept))
set_due(due_key, channel, channel_due(head, claimed, interval, quiet), kept)
return 1
