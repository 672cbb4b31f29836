//! How many packets of a QP may be on the way: its window, as configured, and as the rate controller allows now.
//!
//! Must not: know why a controller allows so many.

use super::SendState;

impl SendState {
    /// The rate controller allows so many bytes of payload on the way; `None`: any.
    pub(crate) fn bound(&mut self, bytes: Option<u64>) {
        let packets = bytes.map(|b| b.div_ceil(u64::from(self.path_mtu.bytes())));
        self.window = packets.map_or(self.cap, |p| p.clamp(1, u64::from(self.cap)) as u32);
    }

    /// Packets that may be on the way now.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Whether nothing may leave before something is answered. A window that has shrunk below what was sent holds nothing back
    /// that no answer is due for, or none would ever come.
    pub(crate) fn is_window_full(&self) -> bool {
        self.on_wire() >= u64::from(self.window) && self.una < self.asked
    }

    /// Whether the next packet fills the window.
    pub(crate) fn fills_window(&self) -> bool {
        self.on_wire() + 1 >= u64::from(self.window)
    }

    /// Whether so many response packets more may be asked for. With selective repeat the last request may reach beyond the window:
    /// so it is asked for while there is time left to find out that the request was lost.
    pub(crate) fn has_room_for(&self, responses: u32) -> bool {
        let due = self.responses_due();
        let reach = match self.selective {
            Some(_) => due + 1,
            None => due + u64::from(responses),
        };
        due == 0 || reach <= u64::from(self.window)
    }

    /// Whether packet `number` asks for an answer by its place alone. Under a controller's window they ask more often, so that
    /// it opens while there is something left in it.
    pub(crate) fn asks(&self, number: u64) -> bool {
        let interval = if self.window < self.cap {
            self.ack_interval.min(self.window / 8).max(1)
        } else {
            self.ack_interval
        };
        (number + 1).is_multiple_of(u64::from(interval))
    }

    /// Whether there is a packet that was found lost, and the window lets it out.
    pub(crate) fn may_repeat(&self) -> bool {
        let lost = self.selective.as_ref().and_then(|sr| sr.next_lost());
        lost.is_some_and(|number| number < self.stop) && !self.is_window_full()
    }
}
