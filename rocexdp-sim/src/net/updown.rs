//! Links that go down and come up.
//!
//! Must not: decide when.

use super::Host;
use super::network::Network;
use crate::switch::PRIORITIES;
use crate::topology::{Node, PortId};

impl<H: Host> Network<H> {
    /// The link of a switch's port goes down or comes up: what its peer asked for is over; and up again, the peer has to be told
    /// what holds.
    fn turn_port(&mut self, s: usize, d: usize, port: PortId, down: bool) {
        let switch = &mut self.switches[s].switch;
        let paused = switch.paused(self.now, port);
        for priority in (0..PRIORITIES as u8).filter(|p| paused & 1 << p != 0) {
            switch.handle_pause(self.now, port, priority, self.now);
        }
        let pfc = self.topology.switches[s].config.pfc.as_ref();
        if let Some(pfc) = pfc.filter(|_| !down) {
            for priority in (0..PRIORITIES as u8).filter(|p| switch.pausing(port, *p)) {
                self.directions[d].ask(priority, pfc.quanta);
            }
        }
    }

    /// A link goes down or comes up. Both ends then know of no pause.
    pub(super) fn turn_link(&mut self, link: usize) {
        let down = !self.directions[2 * link].down;
        for d in [2 * link, 2 * link + 1] {
            if down {
                self.directions[d].cut();
                self.directions[d].forget_pauses();
            } else {
                self.directions[d].down = false;
            }
            let (node, port) = self.from[d];
            match node {
                Node::Host(h) => {
                    let h = h.0 as usize;
                    for priority in 0..PRIORITIES as u8 {
                        self.hosts[h].pause(self.now, port, priority, self.now);
                    }
                    self.serve_host(h);
                }
                Node::Switch(s) => {
                    self.turn_port(s.0 as usize, d, port, down);
                    self.kick(d);
                    self.outputs(s.0 as usize);
                }
            }
        }
    }
}
