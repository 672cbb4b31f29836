//! PFC storms into the hub.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::{Event, Hub};
use crate::{
    live::Role,
    pfc::{Config, Sentry, StormEvent},
};

/// Looks in a window of the detector.
const LOOKS: u32 = 10;

/// Dropped, it ends the storms that were flagged: nobody looks any more.
struct Told {
    sentry: Sentry,
    hub: Hub,
}

impl Told {
    fn tell(&self, storms: Vec<StormEvent>) {
        for storm in storms {
            self.hub.tell(Event::of_storm(&storm));
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let ended = self.sentry.off();
        self.tell(ended);
    }
}

/// Watches the interface that the program is on; ends only by being dropped.
pub async fn watch_storms(iface: String, program: u32, role: Role, hub: Hub) {
    let config = Config::default();
    let mut told = Told {
        sentry: Sentry::new(&iface, config),
        hub,
    };
    // Nothing was flagged yet.
    told.sentry.on(program, role);
    let mut look = tokio::time::interval(Duration::from_nanos(config.window_ns) / LOOKS);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let storms = told.sentry.look();
        told.tell(storms);
    }
}
