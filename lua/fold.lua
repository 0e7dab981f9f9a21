-- fold.lua: folds the events of a batch into messages of their keys, for decide.lua.
--
-- An event is folded if the newest message of its key is not resolved, has at least the severity of the event, and was posted recently enough
-- or the key is flapping. Otherwise it waits while a message of its key is being delivered, so that many events at once get one message.
--
-- ARGV, in one string, each value followed by a blank
--   retention of pairs (microseconds), number of changes and window (milliseconds) of the rule for flapping, books (see read_books)
--   for each event: number of its book, 0 if it is not to be folded; how old its message may be, when it comes back if it has to wait
--   (both microseconds); 1 if it counts for the rule for flapping, otherwise 0
-- and for each event: its pair, its delivery without a receipt (see read_delivery)

-- Returns the answer for an event that has no record: FOLDED, LEASED if the event has to wait; nil if the limits decide.
local function decide_fold(fold, index, event_key, version)
  local event = fold.events[index]
  if not event then
    return nil
  end
  local book, pair, batch = event.book, event.pair, fold.batch
  local stored, _, _, rank = read_delivery(event.delivery)
  local messages = read_messages(read_pair(book, pair))
  local newest = messages and messages[#messages]
  local is_flapping = event.counts and count_change(fold.flaps, book, pair, true, stored, messages)
  if newest and newest.receipt ~= '' and newest.rank >= rank and (is_flapping or newest.time > batch.now - event.within) then
    put_delivery(book, pair, event_key, nil) -- it may have waited for a slot
    local number, minute = fold_into(fold, book, pair, messages, newest, event_key, version, stored, is_flapping)
    local folded = { version = version, answer = answer(batch, FOLDED, number, minute) }
    fold.answered[event_key], batch.known[event_key] = folded, true
    return folded.answer
  end
  for other in pairs((is_flapping or event.within > 0) and read_deliveries(book, pair) or {}) do
    if other ~= event_key and fold.is_leased(other) then
      put_pair(book, coming_of(pair), COMING, math.max(batch.now + event.comes_back, coming_until(book, pair)))
      return answer(batch, LEASED, 1, event.comes_back)
    end
  end
end

-- Returns the number of the answer, of another one if the event is or was delivered and its key is flapping.
local function mark_flapping(fold, index, number)
  local event, answers = fold.events[index], fold.batch.answers
  local verdict, limit, duration = unpack(answers, 3 * number - 2, 3 * number)
  local flap = event and event.counts and (verdict == ADMITTED or verdict == RECLAIMED or verdict == DONE) and read_flap(event.book, event.pair)
  return flap and flap.flapping and answer(fold.batch, verdict, limit + 2, duration) or number
end

-- Records that an event of the batch is being delivered.
local function announce_fold(fold, index, event_key)
  local event = fold.events[index]
  if event then
    announce_pair(event.book, event.pair, event_key, event.delivery, fold.is_leased)
  end
end

local function write_fold(fold)
  local batch, keys = fold.batch, fold.batch.keys
  local records = { calls = keys[1], leased = keys[2], done = keys[3], message = keys[4], taken = keys[7] }
  write_folds(fold, records, batch.lease, batch.retention)
  write_books(fold.books)
end

local function read_fold(batch, next_word, next_key, before_pairs)
  local fold = new_folds(batch.now, tonumber(next_word()))
  fold.batch, fold.decide, fold.mark, fold.announce, fold.write = batch, decide_fold, mark_flapping, announce_fold, write_fold
  fold.flaps = new_flaps(tonumber(next_word()), tonumber(next_word()), fold.kept)
  fold.books, fold.events = read_books(next_word, next_key, batch.now, fold.kept), {}
  for index = 1, batch.count do
    local book, within, comes_back = fold.books[tonumber(next_word())], tonumber(next_word()), tonumber(next_word())
    local counts = next_word() == '1'
    fold.events[index] = book and {
      book = book, within = within, comes_back = comes_back, counts = counts,
      pair = batch.values[before_pairs + 2 * index - 1], delivery = batch.values[before_pairs + 2 * index],
    }
  end
  fold.is_leased = function(event_key)
    return batch.granted_version[event_key]
      or tonumber(redis.call('ZSCORE', batch.leased_key, event_key) or 0) > batch.now - batch.retention
  end
  return fold
end
