//! The parameters of DCQCN, under the names that ConnectX gives them, with the three documented presets.
//!
//! Names, units, defaults and ranges: NVIDIA's "DCQCN CC Parameters" page, the kernel's `drivers/infiniband/hw/mlx5/cong.c`
//! and the ConnectX defaults of published `mlxconfig` dumps. Setting by name, ranges and listing are in `table.rs`.
//!
//! Must not: hold behaviour; the rules are in `rp.rs` and `np.rs`.

use core::time::Duration;

use super::table::ParamError;
use crate::time::Rate;

/// When a CNP cuts the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOn {
    /// At once (paper).
    Event,
    /// At the next tick of `rate_reduce_monitor_period`, once however many came (ns-3, ConnectX).
    Tick,
}

/// When alpha is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlphaOn {
    /// Raised at each CNP, decayed after each `dce_tcp_rtt` without one (paper).
    CnpAndTimeout,
    /// Raised or decayed at each tick of `dce_tcp_rtt` (ns-3, ConnectX).
    Tick,
}

/// Arithmetic of alpha.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlphaForm {
    /// 10-bit fixed point, 0 to 1023 (ConnectX).
    Fixed10,
    /// A real number, 0 to 1 (paper, ns-3).
    Real,
}

/// Whether an increase counts before the phase (fast recovery, additive, hyper) is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageCount {
    /// Counted first (paper).
    Before,
    /// Chosen first (ns-3, ConnectX).
    After,
}

/// Size of a hyper increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HyperStep {
    /// `rpg_hai_rate` each time (ns-3, ConnectX).
    Constant,
    /// The i-th one is i times `rpg_hai_rate` (paper, after QCN).
    Multiplied,
}

/// What the notification point does with marks that fall into the gap after a CNP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapMarks {
    /// One CNP is sent when the gap ends (paper).
    Deferred,
    /// Nothing: the next mark after the gap makes a CNP.
    Dropped,
}

/// Parameters of a reaction point. `Default` is ConnectX's.
#[derive(Clone, Debug, PartialEq)]
pub struct RpParams {
    /// Every cut sets the target rate to the rate before it.
    pub clamp_tgt_rate: bool,
    /// A cut sets the target rate also if only timer increases happened since the last cut.
    pub clamp_tgt_rate_after_time_inc: bool,
    /// Time between increases.
    pub rpg_time_reset: Duration,
    /// Bytes between increases, in units of [`RpParams::BYTE_RESET_UNIT`]; 0: no byte counter.
    pub rpg_byte_reset: u32,
    /// F: increases of one kind before fast recovery ends.
    pub rpg_threshold: u32,
    /// Ceiling of the rate; zero: the line rate.
    pub rpg_max_rate: Rate,
    /// Step of the target in additive increase.
    pub rpg_ai_rate: Rate,
    /// Step of the target in hyper increase.
    pub rpg_hai_rate: Rate,
    /// Log2 of what divides the 10-bit alpha in a cut: 11 cuts by alpha / 2, 10 by alpha.
    pub rpg_gd: u8,
    /// Percent of the rate that one cut leaves at least.
    pub rpg_min_dec_fac: u8,
    /// Floor of the rate.
    pub rpg_min_rate: Rate,
    /// Rate and target at the first CNP, at most 85 % of the line rate; zero: left alone.
    pub rate_to_set_on_first_cnp: Rate,
    /// Weight of the old alpha, in 1/1024.
    pub dce_tcp_g: u16,
    /// Period of alpha.
    pub dce_tcp_rtt: Duration,
    /// Alpha at the first CNP, of 1023.
    pub initial_alpha_value: u16,
    /// Period of the cut ticks.
    pub rate_reduce_monitor_period: Duration,

    /// When a CNP cuts.
    pub cut_on: CutOn,
    /// When alpha moves.
    pub alpha_on: AlphaOn,
    /// Arithmetic of alpha, and with it the rounding of rates.
    pub alpha_form: AlphaForm,
    /// When an increase is counted.
    pub stage_count: StageCount,
    /// Size of hyper increases.
    pub hyper_step: HyperStep,
    /// Added once, before the first cut tick: ns-3 delays it by 1 ns, so that alpha's tick comes first.
    pub cut_tick_delay: Duration,
    /// Gain g of a real alpha where it is no multiple of 1/1024 (the reference's `EWMA_GAIN`), 1/4096 to 1. `None`:
    /// 1 - `dce_tcp_g` / 1024.
    pub ewma_gain: Option<f64>,
}

impl RpParams {
    /// Unit of [`RpParams::rpg_byte_reset`] in bytes. The vendor's pages give none; 64 is what a public model of the ConnectX
    /// RP takes, which makes the default, 32767, 2.1 MB.
    pub const BYTE_RESET_UNIT: u64 = 64;
    /// Smallest gain of a real alpha: bounds how many steps its decay takes.
    pub(super) const MIN_GAIN: f64 = 1.0 / 4096.0;

    /// The gain g of a real alpha.
    #[must_use]
    pub fn gain(&self) -> f64 {
        let gain = self
            .ewma_gain
            .unwrap_or(1.0 - f64::from(self.dce_tcp_g) / 1024.0);
        if gain >= Self::MIN_GAIN {
            gain.min(1.0)
        } else {
            Self::MIN_GAIN
        }
    }
}

impl Default for RpParams {
    fn default() -> Self {
        Self {
            clamp_tgt_rate: false,
            clamp_tgt_rate_after_time_inc: true,
            rpg_time_reset: Duration::from_micros(300),
            rpg_byte_reset: 32_767,
            rpg_threshold: 1,
            rpg_max_rate: Rate::ZERO,
            rpg_ai_rate: Rate::from_mbps(5),
            rpg_hai_rate: Rate::from_mbps(50),
            rpg_gd: 11,
            rpg_min_dec_fac: 50,
            rpg_min_rate: Rate::from_mbps(1),
            rate_to_set_on_first_cnp: Rate::ZERO,
            dce_tcp_g: 1_019,
            dce_tcp_rtt: Duration::from_micros(1),
            initial_alpha_value: 1_023,
            rate_reduce_monitor_period: Duration::from_micros(4),
            cut_on: CutOn::Tick,
            alpha_on: AlphaOn::Tick,
            alpha_form: AlphaForm::Fixed10,
            stage_count: StageCount::After,
            hyper_step: HyperStep::Constant,
            cut_tick_delay: Duration::ZERO,
            ewma_gain: None,
        }
    }
}

/// Parameters of a notification point. `Default` is ConnectX's.
#[derive(Clone, Debug, PartialEq)]
pub struct NpParams {
    /// Least time between two CNPs of one QP.
    pub min_time_between_cnps: Duration,
    /// DSCP of CNPs.
    pub cnp_dscp: u8,
    /// 802.1p priority of CNPs, where frames carry a VLAN tag.
    pub cnp_802p_prio: u8,
    /// What marks within the gap come to.
    pub gap_marks: GapMarks,
}

impl Default for NpParams {
    fn default() -> Self {
        Self {
            min_time_between_cnps: Duration::from_micros(4),
            cnp_dscp: 48,
            cnp_802p_prio: 6,
            gap_marks: GapMarks::Deferred,
        }
    }
}

/// No preset has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no DCQCN preset is called {0:?}: there are connectx (the default), ns3-mellanox and paper"
)]
pub struct UnknownPreset(pub String);

/// All of DCQCN's parameters at an end point. `Default` is ConnectX's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Params {
    /// Reaction point.
    pub rp: RpParams,
    /// Notification point.
    pub np: NpParams,
}

impl Params {
    /// ConnectX with its defaults. The same as `Default`.
    #[must_use]
    pub fn connectx() -> Self {
        Self::default()
    }

    /// The paper's algorithm and its parameters for 40 Gb/s: K, N and the timers 50 to 55 us, B = 10 MB, F = 5, g = 1/256,
    /// steps 40 Mb/s.
    #[must_use]
    pub fn paper() -> Self {
        Self {
            rp: RpParams {
                clamp_tgt_rate: true,
                rpg_time_reset: Duration::from_micros(55),
                rpg_byte_reset: 156_250,
                rpg_threshold: 5,
                rpg_ai_rate: Rate::from_mbps(40),
                rpg_hai_rate: Rate::from_mbps(40),
                rpg_min_rate: Rate::from_mbps(40),
                dce_tcp_g: 1_020,
                dce_tcp_rtt: Duration::from_micros(55),
                cut_on: CutOn::Event,
                alpha_on: AlphaOn::CnpAndTimeout,
                alpha_form: AlphaForm::Real,
                stage_count: StageCount::Before,
                hyper_step: HyperStep::Multiplied,
                ..RpParams::default()
            },
            np: NpParams {
                min_time_between_cnps: Duration::from_micros(50),
                ..NpParams::default()
            },
        }
    }

    /// The HPCC simulator's "Mellanox" DCQCN with the parameters it ships for 100 Gb/s. Its receiver sets no gap between
    /// CNPs.
    #[must_use]
    pub fn ns3_mellanox() -> Self {
        Self {
            rp: RpParams {
                rpg_byte_reset: 0,
                rpg_ai_rate: Rate::from_mbps(20),
                rpg_hai_rate: Rate::from_mbps(200),
                rpg_min_rate: Rate::from_mbps(1_000),
                dce_tcp_g: 1_020,
                alpha_form: AlphaForm::Real,
                cut_tick_delay: Duration::from_nanos(1),
                ..RpParams::default()
            },
            np: NpParams {
                min_time_between_cnps: Duration::ZERO,
                ..NpParams::default()
            },
        }
    }

    /// A preset by name: `connectx`, `ns3-mellanox` or `paper`.
    ///
    /// # Errors
    /// [`UnknownPreset`], which lists them.
    pub fn preset(name: &str) -> Result<Self, UnknownPreset> {
        match name {
            "connectx" => Ok(Self::connectx()),
            "ns3-mellanox" => Ok(Self::ns3_mellanox()),
            "paper" => Ok(Self::paper()),
            other => Err(UnknownPreset(other.to_owned())),
        }
    }

    /// Checks every value against its range, and the values against one another and against `line_rate` where one is known.
    ///
    /// # Errors
    /// The first parameter that is out of its range or in conflict with another.
    pub fn validate(&self, line_rate: Option<Rate>) -> Result<(), ParamError> {
        self.check_ranges()?;
        let rp = &self.rp;
        if rp.rpg_max_rate != Rate::ZERO && rp.rpg_min_rate > rp.rpg_max_rate {
            return Err(ParamError::Conflict {
                name: "rpg_min_rate",
                reason: format!(
                    "the floor, {}, is above rpg_max_rate, {}",
                    rp.rpg_min_rate, rp.rpg_max_rate
                ),
            });
        }
        // A late look runs the steps from the floor to the ceiling one by one: keep them countable.
        for (name, step) in [
            ("rpg_ai_rate", rp.rpg_ai_rate),
            ("rpg_hai_rate", rp.rpg_hai_rate),
        ] {
            if step != Rate::ZERO && step < Rate::from_mbps(1) {
                return Err(ParamError::Conflict {
                    name,
                    reason: format!("{step} is below 1 Mb/s: give at least that, or 0"),
                });
            }
        }
        if let Some(gain) = rp.ewma_gain
            && !(RpParams::MIN_GAIN..=1.0).contains(&gain)
        {
            return Err(ParamError::Conflict {
                name: "ewma_gain",
                reason: format!("{gain} is not in 1/4096..1"),
            });
        }
        let Some(line) = line_rate else { return Ok(()) };
        if rp.rpg_min_rate > line {
            return Err(ParamError::Conflict {
                name: "rpg_min_rate",
                reason: format!(
                    "the floor, {}, is above the line rate, {line}",
                    rp.rpg_min_rate
                ),
            });
        }
        let first_max = Rate::from_bps(line.as_bps() / 100 * 85);
        if rp.rate_to_set_on_first_cnp > first_max {
            return Err(ParamError::Conflict {
                name: "rate_to_set_on_first_cnp",
                reason: format!(
                    "{} is above 85 % of the line rate, {line}: give at most {first_max}",
                    rp.rate_to_set_on_first_cnp
                ),
            });
        }
        Ok(())
    }
}
