//! FIFO queues of packets with one store: memory follows the packets that a switch holds, not its number of queues.
//!
//! Must not: order, drop or count anything.

/// Index of nothing.
const NONE: u32 = u32::MAX;

/// A packet in a queue.
struct Slot<P> {
    /// `None`: the slot is free.
    held: Option<Held<P>>,
    /// The next in its queue, or the next free one.
    next: u32,
}

/// A packet and where it came from.
pub(super) struct Held<P> {
    pub packet: P,
    pub len: u32,
    pub in_port: u16,
}

/// The packets of all queues.
pub(super) struct Store<P> {
    slots: Vec<Slot<P>>,
    free: u32,
}

/// Ends of a queue; its packets are in the [`Store`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Fifo {
    head: u32,
    tail: u32,
}

impl Fifo {
    pub(super) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };

    pub(super) const fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

impl<P> Store<P> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
        }
    }

    /// Appends a packet.
    pub(super) fn push(&mut self, queue: &mut Fifo, held: Held<P>) {
        let slot = Slot {
            held: Some(held),
            next: NONE,
        };
        let at = match self.slots.get_mut(self.free as usize) {
            Some(free) => {
                let at = self.free;
                self.free = free.next;
                *free = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        match self.slots.get_mut(queue.tail as usize) {
            Some(tail) => tail.next = at,
            None => queue.head = at,
        }
        queue.tail = at;
    }

    /// Length of the first packet; 0 if there is none.
    pub(super) fn first_len(&self, queue: &Fifo) -> u32 {
        let first = self.slots.get(queue.head as usize);
        first
            .and_then(|slot| slot.held.as_ref())
            .map_or(0, |held| held.len)
    }

    /// Whether it is so of one of a queue's packets.
    pub(super) fn any(&self, queue: &Fifo, is: impl Fn(&Held<P>) -> bool) -> bool {
        let mut at = queue.head;
        while let Some(slot) = self.slots.get(at as usize) {
            if slot.held.as_ref().is_some_and(&is) {
                return true;
            }
            at = slot.next;
        }
        false
    }

    /// Takes the first packet.
    pub(super) fn pop(&mut self, queue: &mut Fifo) -> Option<Held<P>> {
        let at = queue.head;
        let slot = self.slots.get_mut(at as usize)?;
        let held = slot.held.take();
        queue.head = slot.next;
        if queue.head == NONE {
            queue.tail = NONE;
        }
        slot.next = self.free;
        self.free = at;
        held
    }
}
