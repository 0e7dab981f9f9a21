-- claim_summary.lua: gives the caller summaries that are due, to be posted by nobody else as long as it has the lease.
--
-- A claimed summary is moved aside: what is dropped later belongs to the category's next one, which is not due before
-- the interval has passed since, nor claimed before this one is over. One whose lease has lapsed is claimed again.
--
-- KEYS
--   1  calls     sorted set: call that granted something -> its time
--   2  drops     hash: category -> counts of the summary to come, see count_drops.lua; category and line feed -> the summary
--                that was claimed: a line "claim attempt at_least", and its counts
--   3  due       sorted set: field of drops -> when it is due
--   4  dropping  sorted set: instance that may have counts which it has not told -> until when that is believed
--
-- ARGV
--   interval, lease, believed (see count_drops.lua), kept (all microseconds), how many summaries at most
--
-- Returns the time, and for each summary its category and text, as it is kept. Its claim is the time at which it was
-- claimed first; at_least is 1 if an instance was killed that may have had more counts.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is claimed.

local calls_key, drops_key, due_key, dropping_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local interval, lease, believed, kept = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local limit = tonumber(ARGV[5])

local now = deployment_time(calls_key)
redis.call('HLEN', drops_key)

-- A summary waits until each instance that is dropping has told what it had counted by the time that it was due, or is
-- not believed any more.
local upto = now
local next_end = redis.call('ZRANGE', dropping_key, '(' .. integer(now), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
if next_end then
  upto = math.min(now, tonumber(next_end) - believed)
end

-- Whether an instance was killed with counts in the time since then.
local function lost_counts(since)
  return #redis.call('ZRANGE', dropping_key, integer(since), integer(now), 'BYSCORE', 'LIMIT', 0, 1) > 0
end

local reply, fields, dues, forgotten = { now }, {}, {}, {}

local function set(field, text, due)
  fields[#fields + 1] = field
  fields[#fields + 1] = text
  dues[#dues + 1] = integer(due)
  dues[#dues + 1] = field
end

local function give(category, claim, attempt, at_least, counts)
  local text = integer(claim) .. ' ' .. attempt .. ' ' .. at_least .. '\n' .. counts
  set(category .. '\n', text, now + lease)
  reply[#reply + 1] = category
  reply[#reply + 1] = text
end

local function claim_again(category, text)
  local claim, attempt, at_least, counts = string.match(text, '^(%d+) (%d+) (%d)\n(.*)$')
  if claim then
    give(category, tonumber(claim), tonumber(attempt) + 1, at_least, counts)
  end
  return claim
end

local function claim_new(category, counts)
  local total, first = string.match(counts, '^(%d+) (%d+) ')
  if not total or total == '0' then
    return false
  end
  local lease_end = redis.call('ZSCORE', due_key, category .. '\n')
  if lease_end then
    dues[#dues + 1] = lease_end
    dues[#dues + 1] = category
    return true
  end
  give(category, now, 1, lost_counts(tonumber(first)) and 1 or 0, counts)
  set(category, '0 0 0 0 ' .. integer(now + interval), now + interval)
  return true
end

for _, field in ipairs(redis.call('ZRANGE', due_key, '-inf', integer(upto), 'BYSCORE', 'LIMIT', 0, PIECE)) do
  if #reply > 2 * limit then
    break
  end
  local text = redis.call('HGET', drops_key, field)
  local category, claimed = string.match(field, '^([^\n]*)(\n?)$')
  local claim = claimed == '' and claim_new or claim_again
  if not text or not claim(category, text) then
    forgotten[#forgotten + 1] = field
  end
end

if #dues + #forgotten == 0 then
  return reply
end
check_rights(due_key, kept)
redis.call('ZADD', due_key, 'XX', 0, '')
redis.call('HDEL', drops_key, '')
in_pieces('HSET', drops_key, fields)
redis.call('PEXPIRE', drops_key, milliseconds(kept))
in_pieces('ZADD', due_key, dues)
in_pieces('HDEL', drops_key, forgotten)
in_pieces('ZREM', due_key, forgotten)
redis.call('PEXPIRE', due_key, milliseconds(kept))
return reply
