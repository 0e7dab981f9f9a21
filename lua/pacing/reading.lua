-- reading.lua: shares what the instances read of a thread (a channel, or a thread in it), so that one reading answers for all.
--
-- One instance at a time has the claim on a thread. It reads the thread and stores what it has read. The other instances wait
-- until the claim ends. What was read proves that a post is absent if the reading began after the question and reached all
-- messages since the time that the question is about. It proves that a post is there in any case.
--
-- KEYS
--   1   calls      sorted set: nonce of a call that granted something -> its time
--   2   reading:…  string: the claim: instance, time of the first request (0: none yet), time since which it reads; '': no claim
--   3   read:…     string: the newest reading: time of its first request, time since which it has read, 1 if it has read all,
--                  names and ts of posts
--
-- ARGV
--   step, name of the caller for this reading, how long ago the oldest message is that matters (microseconds)
--   step ask: time of the newest reading that the caller has seen
--   step end: 1 if the caller has read all, otherwise 0; names and ts of posts (if it has read neither, nothing is stored)
--
-- Returns
--   step ask: 0 if another instance has the claim, 1 if the caller has it, 2 if there is a reading that the caller has not seen, 3
--     if that reading also has all messages that matter; time of the question; the reading
--   step begin: 1 if the caller has the claim, otherwise 0; how long ago the oldest message is that matters to anyone; ''
--   steps keep, end: as begin; 0; ''
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

-- How long a claim lasts without a renewal, and how long what was read is stored.
local CLAIM_KEPT, READ_KEPT = 10 * SECOND, 60 * SECOND

-- A claim goes back further than what was asked for by this time, since each call computes the age of a message again.
local FURTHER = SECOND

local calls_key, claim_key, read_key = KEYS[1], KEYS[2], KEYS[3]
local step, caller, age = ARGV[1], ARGV[2], tonumber(ARGV[3])

local now = deployment_time(calls_key)
local holder, begun, claim_since = string.match(redis.call('GET', claim_key) or '', '^(%S+) (%d+) (%d+)$')
local read = redis.call('GET', read_key) or ''
local read_begun, read_since, read_all = string.match(read, '^(%d+) (%d+) (%d)')
begun, claim_since = tonumber(begun) or 0, tonumber(claim_since) or now
read_begun, read_since = tonumber(read_begun) or 0, tonumber(read_since) or now
local newest = math.max(begun, read_begun)
local since = math.max(0, now - age)

local function save_claim(name, ...)
  redis.call('SET', claim_key, name .. ' ' .. integer(begun) .. ' ' .. integer(claim_since), ...)
end

if step == 'ask' then
  local asked = math.max(now, newest)
  if holder ~= caller and read_begun > tonumber(ARGV[4]) then
    return { read_all == '1' and read_since <= since and 3 or 2, asked, read }
  end
  if holder and holder ~= caller then
    if begun == 0 and since < claim_since then
      claim_since = math.max(0, since - FURTHER)
      save_claim(holder, 'KEEPTTL')
    end
    return { 0, asked, '' }
  end
  claim_since = math.max(0, math.min(claim_since, since - FURTHER))
  save_claim(caller, 'PX', milliseconds(CLAIM_KEPT))
  return { 1, asked, '' }
end

if holder ~= caller then
  return { 0, 0, '' }
elseif step == 'end' then
  if begun > 0 and (ARGV[4] == '1' or ARGV[5] ~= '') then
    local value = integer(begun) .. ' ' .. integer(claim_since) .. ' ' .. ARGV[4] .. ' ' .. ARGV[5]
    redis.call('SET', read_key, value, 'PX', milliseconds(READ_KEPT))
  end
  redis.call('SET', claim_key, '', 'PX', milliseconds(CLAIM_KEPT))
  return { 1, 0, '' }
elseif step == 'begin' and begun == 0 then
  begun = math.max(now, newest + 1)
  claim_since = math.max(0, math.min(claim_since, since - FURTHER))
end
save_claim(caller, 'PX', milliseconds(CLAIM_KEPT))
return { 1, step == 'begin' and now - claim_since or 0, '' }
