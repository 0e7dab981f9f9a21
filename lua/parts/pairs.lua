-- pairs.lua: what joins an event that fires and the one that resolves it.
--
-- The pairs of each first-level category have a book of their own, so that none of them can push out another's: a hash holds a
-- value for each field, a sorted set when that expires. A field is the name of a pair or, once the pair was
-- resolved, a line feed and the record of the event that resolves it. The first byte of a value says what it is: a pair that
-- is open (see open_text); one whose message is on its way, with the record of that event; or one whose event waits for a
-- slot, with the time at which it comes back, a blank and its record.

local OPEN, UNDER_WAY, WAITING = '=', '~', '@'

-- How many fields a book may have. Those that expire first make room.
local MOST_PAIRS = 50000

-- What a call reads of pairs, and is to write.
local function pair_book(key, until_key, now, kept)
  return { key = key, until_key = until_key, now = now, kept = kept, entries = {}, values = {}, expiries = {}, removed = {} }
end

-- The books of a call: their number from ARGV, two keys for each from KEYS. An event then has the number of its book, or 0.
local function read_books(next_argument, next_key, now, kept)
  local books = {}
  for b = 1, tonumber(next_argument()) do
    local key = next_key()
    books[b] = pair_book(key, next_key(), now, kept)
  end
  return books
end

-- A field that has not expired, with what the call has done to it so far; nil if there is none.
local function read_pair(book, field)
  local entry = book.entries[field]
  if entry == nil then
    local value = redis.call('HGET', book.key, field)
    local expires = tonumber(redis.call('ZSCORE', book.until_key, field))
    entry = value and expires and expires > book.now and { value = value, expires = expires }
    book.entries[field] = entry or false
  end
  return entry or nil
end

local function put_pair(book, field, value, expires)
  book.entries[field] = { value = value, expires = expires }
  book.values[#book.values + 1] = field
  book.values[#book.values + 1] = value
  book.expiries[#book.expiries + 1] = integer(expires)
  book.expiries[#book.expiries + 1] = field
end

local function remove_pair(book, field)
  book.entries[field] = false
  book.removed[#book.removed + 1] = field
end

-- The text of an entry whose value is of a kind, else nil.
local function pair_text(entry, kind)
  return entry and string.sub(entry.value, 1, 1) == kind and string.sub(entry.value, 2) or nil
end

-- When the event of a pair comes back that waits for a slot, and its record; nil if none does.
local function awaited(entry)
  local time, record = string.match(pair_text(entry, WAITING) or '', '^(%d+) (.*)$')
  return tonumber(time), record
end

-- A pair that is open has the receipt of its first message and, if there were more, that of the newest one; and the stamp of
-- the message in which its newest event was stored.
local function open_text(stamp, first, newest)
  return OPEN .. stamp .. ' ' .. #first .. ' ' .. first .. newest
end

local function read_open(entry)
  local stamp, length, receipts = string.match(pair_text(entry, OPEN) or '', '^(%d+) (%d+) (.*)$')
  if stamp then
    return stamp, string.sub(receipts, 1, tonumber(length)), string.sub(receipts, tonumber(length) + 1)
  end
end

-- The field of the pair that a resolved event has taken.
local function taken_pair(record)
  return '\n' .. record
end

-- Notes that the message of a pair is on its way, unless the pair is open or there is none (no book).
local function announce_pair(book, pair, record)
  if book and not pair_text(read_pair(book, pair), OPEN) then
    put_pair(book, pair, UNDER_WAY .. record, book.now + book.kept)
  end
end

-- Takes note of a delivery, by the stamp of its stored message, a blank and its receipt: a pair is open from its first message
-- on, and what was resolved is forgotten. The field is that of a pair, or the one that a resolved event has taken. A delivery
-- must be told once: later, the pair may have been resolved.
local function settle_pair(book, field, delivery)
  local entry = read_pair(book, field)
  if string.sub(field, 1, 1) ~= '\n' then
    local stamp, receipt = string.match(delivery, '^(%d+) (.*)$')
    local newest, first = read_open(entry)
    if not first then
      put_pair(book, field, open_text(stamp, receipt, ''), book.now + book.kept)
    elseif tonumber(stamp) > tonumber(newest) then
      put_pair(book, field, open_text(stamp, first, receipt), entry.expires)
    end
  elseif entry then
    remove_pair(book, field)
  end
end

-- Writes what a book has, and forgets fields that have expired or are too many. What does no harm by itself goes first.
local function write_book(book)
  if #book.values + #book.removed == 0 then
    return
  end
  redis.call('ZREM', book.until_key, '')
  redis.call('ZADD', book.until_key, 'XX', 0, '')
  redis.call('HDEL', book.key, '')
  in_pieces('HSET', book.key, book.values)
  in_pieces('ZADD', book.until_key, book.expiries)
  in_pieces('HDEL', book.key, book.removed)
  in_pieces('ZREM', book.until_key, book.removed)

  local expired = redis.call('ZCOUNT', book.until_key, '-inf', integer(book.now))
  local surplus = math.min(math.max(expired, redis.call('ZCARD', book.until_key) - MOST_PAIRS), PIECE)
  if surplus > 0 then
    local forgotten = redis.call('ZRANGE', book.until_key, 0, surplus - 1)
    redis.call('HDEL', book.key, unpack(forgotten))
    redis.call('ZREM', book.until_key, unpack(forgotten))
  end
  local last = redis.call('ZRANGE', book.until_key, -1, -1, 'WITHSCORES')[2]
  if last then
    local kept = milliseconds(tonumber(last) - book.now)
    redis.call('PEXPIRE', book.key, kept)
    redis.call('PEXPIRE', book.until_key, kept)
  end
end

local function write_books(books)
  for _, book in ipairs(books) do
    write_book(book)
  end
end
