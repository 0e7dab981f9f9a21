-- delay.lua: plans when a denied event comes back, instead of being dropped. Events that wait for one place come back in the
-- order in which they were planned, as many for each window as the limit that denied them has slots, and a little apart. Those
-- that were denied again come back one for each slot that opens, a window / slots apart: else all would come for the next one.
--
-- KEYS
--   1  calls        sorted set: call that granted something -> its time
--   2  delayed      sorted set: event's ID -> when it comes back, or came
--   3  delayed:…    sorted set: likewise, of those that the same place denied; its members name stored messages
--   4  pairs        hash: see pair_book
--   5  pairs:until  sorted set: see pair_book
--   6  leased       sorted set: record -> end of its lease
--   7  delayed:again:…  sorted set: as 3, of those that have waited before
--
-- ARGV
--   ID, name of the stored message, whether the ID was derived from that ("1" or "0")
--   time until the next slot opens, the longest that the event may still wait, window of the limit (microseconds)
--   slots of the limit, most events that may wait, whether this one has waited before ("1" or "0"), its pair if it is a
--   firing event, else ''
--
-- Returns the time until the event comes back (microseconds), and
--   1 if that is planned, or was by an earlier call for the same message
--   or, with the time 0: 2 if too many others wait, 3 if it would be too late, 4 if another message with its ID waits
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

local PLANNED, TOO_MANY, TOO_LATE, DUPLICATE = 1, 2, 3, 4

-- How long an event that came back is remembered, so that a redelivery of the message before finds it.
local KEPT = 3600 * SECOND

-- Longer than anything here is kept.
local FAR = 366 * 24 * 3600 * SECOND

-- How far apart events come back that wait for the same window.
local SPREAD = SECOND

local calls_key, delayed_key, place_key, until_key, leased_key = KEYS[1], KEYS[2], KEYS[3], KEYS[5], KEYS[6]
local again_key = KEYS[7]
local id, message, is_derived = ARGV[1], ARGV[2], ARGV[3] == '1'
local wait, longest, window = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local slots, most = tonumber(ARGV[7]), tonumber(ARGV[8])
local has_waited, pair = ARGV[9] == '1', ARGV[10]

local now = deployment_time(calls_key)
local book = pair_book(KEYS[4], until_key, now, longest + KEPT)
local waiting = redis.call('ZCOUNT', delayed_key, '(' .. integer(now), '+inf')
local ahead = redis.call('ZCOUNT', place_key, '(' .. integer(now), '+inf')
local again_ahead = redis.call('ZCOUNT', again_key, '(' .. integer(now), '+inf')
local planned = tonumber(redis.call('ZSCORE', delayed_key, id) or 0)
if planned > now and not has_waited then
  if tonumber(redis.call('ZSCORE', place_key, message) or 0) == planned then
    return { planned - now, PLANNED }
  elseif not is_derived then -- a derived ID comes again only in a stream that was made anew, without what waited
    return { 0, DUPLICATE }
  end
end

local entry = pair ~= '' and read_pair(book, pair) or nil
local _, waiter = awaited(entry)

-- The pair is marked unless it is open, another event of it waits, or the message of one is on its way: that is so as long as
-- it is leased.
local function may_mark()
  local under_way = pair_text(entry, UNDER_WAY)
  if under_way then
    return tonumber(redis.call('ZSCORE', leased_key, under_way) or 0) <= now
  end
  return not entry or waiter == id
end
local marks = pair ~= '' and may_mark()

local spacing = math.floor(window / slots)
local spread = math.min(SPREAD, spacing)
local back_in = wait + math.floor(now % 1009 / 1009 * spread / 2)
if has_waited then
  back_in = back_in + again_ahead * spacing
else
  back_in = back_in + math.floor(ahead / slots) * window + ahead % slots * spread
end

local refusal
if back_in > longest then
  refusal = TOO_LATE
elseif waiting >= most and not has_waited then
  refusal = TOO_MANY
end
if refusal then
  if waiter == id then
    check_rights(until_key, FAR)
    remove_pair(book, pair)
    write_pairs(book)
  end
  return { 0, refusal }
end

local comes_back = integer(now + back_in)
local members = { [delayed_key] = id, [place_key] = message }
if has_waited then
  members[again_key] = message
end
for key in pairs(members) do
  check_rights(key, FAR)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', integer(now - KEPT))
end
if marks then
  put_pair(book, pair, WAITING .. comes_back .. ' ' .. id, now + back_in + KEPT)
  write_pairs(book)
end
for key, member in pairs(members) do
  redis.call('ZADD', key, comes_back, member)
  local last = tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])
  redis.call('PEXPIRE', key, milliseconds(last - now + KEPT))
end
return { back_in, PLANNED }
