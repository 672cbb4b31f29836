//! From the program's ring buffer `EVENTS` into the hub.

use std::time::Duration;

use anyhow::Result;
use rocexdp_common::maps;
use tokio::time::{Instant, MissedTickBehavior};

use super::{Clocks, Event, Hub};
use crate::maps::{MapsView, ProgramMaps};

/// How often the ring is looked at. Not waited on: waking a reader costs the program more than the event, and an event a
/// twentieth of a second late is early enough.
const LOOK: Duration = Duration::from_millis(50);
/// How often is looked for events that the program held back or lost.
const COUNT: Duration = Duration::from_secs(1);

/// Events that the rate limit held back, and that found no room in the ring.
fn held_back(maps: &MapsView) -> (u64, u64) {
    maps.all_counters().iter().fold((0, 0), |(held, lost), c| {
        (held + c.events.suppressed, lost + c.events.lost)
    })
}

/// Reads the events of the program `program`, attached to `iface`, into the hub; ends only by being dropped. There must be
/// one reader a program: two would take each other's events.
///
/// # Errors
/// The program has gone, has no such map, or its map can't be waited on.
pub async fn feed(iface: String, program: u32, hub: Hub) -> Result<()> {
    let mut ring = ProgramMaps::of(program)?.ring(maps::EVENTS)?;
    let maps = MapsView::of_program(program)?;
    let mut told = (0, 0);
    let mut next_count = Instant::now() + COUNT;
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let clocks = Clocks::now();
        while let Some(record) = ring.next() {
            // A longer record is a newer program's; a shorter one is none.
            let Some(record) = record.get(..size_of::<maps::Event>()) else {
                continue;
            };
            let record = bytemuck::pod_read_unaligned(record);
            hub.tell(Event::of_packet(&iface, &record, clocks));
        }
        if Instant::now() >= next_count {
            next_count += COUNT;
            let now = held_back(&maps);
            if now != told {
                hub.tell(Event::of_loss(
                    &iface,
                    now.0.saturating_sub(told.0),
                    now.1.saturating_sub(told.1),
                ));
                told = now;
            }
        }
    }
}
