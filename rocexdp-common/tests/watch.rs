//! An observer's trackers stay on their streams, whatever a corrupt PSN says.

mod support;

use rocexdp_common::{
    maps::FlowState,
    opcode::{Opcode, rc},
    parse::{self, Packet},
    stray,
};
use support::packet::Spec;

fn packet(spec: &Spec) -> Packet {
    parse::parse(&spec.build()[..]).unwrap()
}

struct Observer(FlowState);

impl Observer {
    fn new() -> Self {
        Self(FlowState::ZERO)
    }

    fn see(&mut self, opcode: Opcode, psns: impl IntoIterator<Item = u32>) {
        for psn in psns {
            let spec = Spec::new(opcode, 17, psn & 0xff_ffff);
            let spec = if opcode == rc::WRITE_MIDDLE {
                spec.payload(256)
            } else {
                spec.headers(&[0x1f, 0, 0, 1])
            };
            let packet = packet(&spec);
            let mut notes = stray::Notes::default();
            stray::judge(&mut self.0, &packet, &mut notes);
            self.0.count(&packet, 1);
            stray::settle(&mut self.0, &notes);
        }
    }

    fn write(&mut self, psns: impl IntoIterator<Item = u32>) {
        self.see(rc::WRITE_MIDDLE, psns);
    }

    /// Gaps, missing, duplicates, expected.
    fn requests(&self) -> [u64; 4] {
        let t = &self.0.counters.requests;
        [t.gaps, t.missing, t.duplicates, u64::from(t.expected_psn)]
    }
}

#[test]
fn a_clean_stream_and_small_losses_are_counted_as_before() {
    let mut o = Observer::new();
    o.write((0xff_fff0..0x100_0010).chain(0x100_0013..0x100_0020));
    assert_eq!(o.requests(), [1, 3, 0, 0x20]);
    // Go-back-N: what was seen is a duplicate.
    o.write(0x10..0x20);
    assert_eq!(o.requests(), [1, 3, 16, 0x20]);
}

#[test]
fn one_corrupt_psn_near_or_far_costs_one_packet() {
    for corrupt in [200 + 100, 200 + 60_000, 200 + (1 << 20), 0x90_0000] {
        let mut o = Observer::new();
        o.write(0..200);
        o.write([corrupt]);
        o.write(201..5000);
        let [gaps, missing, duplicates, expected] = o.requests();
        assert_eq!(expected, 5000, "{corrupt:#x}");
        assert_eq!(duplicates, 0, "{corrupt:#x}");
        assert!(gaps <= 1 && missing <= 1, "{corrupt:#x}: {gaps} {missing}");
    }
}

#[test]
fn a_real_loss_of_many_packets_stays_a_loss() {
    let mut o = Observer::new();
    o.write(0..100);
    o.write(1100..1200);
    assert_eq!(o.requests(), [1, 1000, 0, 1200]);
    // And the repetition from the gap on is one.
    o.write(100..1200);
    assert_eq!(o.requests(), [1, 1000, 1100, 1200]);
}

#[test]
fn a_qp_number_used_again_begins_a_new_stream() {
    for first in [0x50_0000, 0xc0_0000] {
        let mut o = Observer::new();
        o.write(0..100);
        o.write(first..first + 100);
        assert_eq!(o.requests(), [0, 0, 0, u64::from(first + 100)]);
        o.write(first + 101..first + 200);
        assert_eq!(o.requests()[..3], [1, 1, 0]);
    }
}

#[test]
fn strange_psns_that_do_not_follow_one_another_move_nothing() {
    let mut o = Observer::new();
    o.write(0..100);
    for i in 0..50_u32 {
        o.write([0x40_0000 + i * 0x2_0000]);
    }
    assert_eq!(o.requests(), [0, 0, 0, 100]);
    o.write(100..200);
    assert_eq!(o.requests(), [0, 0, 0, 200]);
}

#[test]
fn responses_come_back_after_a_corrupt_one() {
    let mut o = Observer::new();
    o.see(rc::READ_RESPONSE_ONLY, 0..100);
    o.see(rc::READ_RESPONSE_ONLY, [100 + 5000]);
    o.see(rc::READ_RESPONSE_ONLY, 101..300);
    let t = &o.0.counters.responses;
    assert_eq!((t.gaps, t.duplicates, t.expected_psn), (0, 0, 300));
    // Requests of other kinds take PSNs between two READs: no gap, however many.
    o.see(rc::READ_RESPONSE_ONLY, [100_000]);
    let t = &o.0.counters.responses;
    assert_eq!((t.gaps, t.duplicates, t.expected_psn), (0, 0, 100_001));
}
