//! PFC storms into the hub.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::{Event, Hub};
use crate::{
    live::Role,
    pfc::{Config, Sentry},
};

/// Looks in a window of the detector.
const LOOKS: u32 = 10;

/// Watches the interface that the program is on; ends only by being dropped.
pub async fn watch_storms(iface: String, program: u32, role: Role, hub: Hub) {
    let config = Config::default();
    let mut sentry = Sentry::new(&iface, config);
    sentry.on(program, role);
    let mut look = tokio::time::interval(Duration::from_nanos(config.window_ns) / LOOKS);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        for storm in sentry.look() {
            hub.tell(Event::of_storm(&storm));
        }
    }
}
