//! What is refused, in which words.

use super::*;

/// What the refusal says, and what is refused.
type Case = (&'static str, fn(&mut SwitchConfig));

#[test]
fn what_cannot_work_is_refused_with_port_priority_and_value() {
    let cases: [Case; 12] = [
        ("0 ports: a switch has 1 to 65535", |c| c.ports.clear()),
        ("port 1: the link's rate is 0", |c| {
            c.ports[1].rate = Rate::from_bps(0)
        }),
        (
            "port 1, priority 5: kmin (3000 B) is above kmax (2000 B)",
            |c| {
                c.ports[1].ecn[5] = Some(EcnConfig {
                    kmin: 3_000,
                    kmax: 2_000,
                    pmax: 0.1,
                });
            },
        ),
        (
            "port 0, priority 3: pmax is 1.5: a probability lies between 0 and 1",
            |c| {
                c.ports[0].ecn[3] = Some(EcnConfig {
                    kmin: 0,
                    kmax: 1,
                    pmax: 1.5,
                });
            },
        ),
        (
            "port 0, priority 2: its weight is 0, so it would never send: give it a weight or make it strict",
            |c| {
                c.ports[0].scheduler = Scheduler::Weighted {
                    weights: [0, 1, 0, 1, 1, 1, 1, 1],
                    strict: [true, false, false, false, false, false, false, false],
                };
            },
        ),
        ("port 1: alpha is 0: it must be above 0 and finite", |c| {
            c.ports[1].alpha = Some(0.0)
        }),
        ("alpha is NaN: it must be above 0 and finite", |c| {
            c.pfc = Some(PfcConfig {
                threshold: PfcThreshold::Dynamic(f64::NAN),
                ..reference_pfc()
            });
        }),
        (
            "headroom and reserved bytes of all ports take 1200000 B of a buffer of 1000000 B: nothing is left to share",
            |c| {
                c.pfc = Some(reference_pfc());
                c.ports.iter_mut().for_each(|p| p.headroom = 600_000);
            },
        ),
        (
            "the PFC threshold (2000000 B) is above the shared buffer (1000000 B once headroom and reserved bytes are off)",
            |c| {
                c.pfc = Some(PfcConfig {
                    threshold: PfcThreshold::Static(2_000_000),
                    ..reference_pfc()
                });
            },
        ),
        (
            "the resume offset (3072 B) is above the PFC threshold (3000 B)",
            |c| {
                c.pfc = Some(PfcConfig {
                    threshold: PfcThreshold::Static(3_000),
                    ..reference_pfc()
                });
            },
        ),
        ("a pause of 0 quanta would be a resume", |c| {
            c.pfc = Some(PfcConfig {
                quanta: Some(0),
                ..reference_pfc()
            })
        }),
        ("the tail-drop limit is 0: no packet would pass", |c| {
            c.tail_drop = Some(0)
        }),
    ];
    for (message, break_it) in cases {
        let mut config = config(2);
        break_it(&mut config);
        let error = config.check().expect_err(message);
        assert_eq!(error.to_string(), message);
        let built = Switch::<Packet>::new(&config, 1)
            .err()
            .map(|e| e.to_string());
        assert_eq!(built.as_deref(), Some(message));
    }
    assert_eq!(config(2).check(), Ok(()));
}
