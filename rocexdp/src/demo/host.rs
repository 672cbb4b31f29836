//! One host of the demo: its `rocexdp run`, and copies from it.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use crate::{
    control::copy::CopyReport,
    lab::{Host, Lab},
    maps::{MapsView, QpView},
    out,
    process::{Cancel, Offspring, own_program},
    sys::netns::NetNs,
};

/// How long `rocexdp run` has to come up: the verifier reads the program meanwhile.
const START: Duration = Duration::from_secs(60);
/// QPs of finished copies stay, so that their counters can be shown.
const LINGER: &str = "10min";

/// A host with its daemon.
#[derive(Debug)]
pub struct Station {
    host: Host,
    namespace: NetNs,
    interface: String,
    daemon: Mutex<Offspring>,
    ready: mpsc::Receiver<String>,
}

impl Station {
    /// Starts `rocexdp run` on a host of the lab; `receive` is the directory that it receives into, with `../token`.
    ///
    /// # Errors
    /// The system's.
    pub fn start(
        lab: &Lab,
        host: Host,
        receive: Option<&Path>,
        cancel: &Cancel,
    ) -> anyhow::Result<Self> {
        cancel.check()?;
        let interface = lab.host_interface().to_owned();
        let mut command = Command::new(own_program()?);
        command.args(["run", "--iface", &interface, "--linger", LINGER]);
        if let Some(dir) = receive {
            command
                .args(["--listen", &host.ipv4().to_string(), "--receive-dir"])
                .arg(dir);
            command.arg("--token-file").arg(dir.with_file_name("token"));
        }
        lab.spawn_in(host, &mut command)?;
        let child = command
            // The terminal's Ctrl-C is the demo's, which ends its children itself.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting rocexdp run")?;
        let mut daemon = Offspring::new(child, format!("rocexdp run on {host}"));
        if let Some(errors) = daemon.child().stderr.take() {
            relay(errors, move |line| {
                out::note(format_args!("{host} | {line}"))
            })?;
        }
        let (tell, ready) = mpsc::channel();
        if let Some(output) = daemon.child().stdout.take() {
            relay(output, move |line| {
                // Nobody waits for more than the first line.
                let _ = tell.send(line);
            })?;
        }
        Ok(Self {
            host,
            namespace: lab.host(host).try_clone()?,
            interface,
            daemon: Mutex::new(daemon),
            ready,
        })
    }

    /// Waits for the daemon's `ready` line.
    ///
    /// # Errors
    /// It ended, or did not come up in time.
    pub fn wait_ready(&self, cancel: &Cancel) -> anyhow::Result<()> {
        let until = Instant::now() + START;
        loop {
            match self.ready.recv_timeout(Duration::from_millis(50)) {
                Ok(line) if line.starts_with("ready") => return Ok(()),
                Ok(_) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    bail!("rocexdp run on {} ended: see above", self.host)
                }
            }
            cancel.check()?;
            if Instant::now() >= until {
                bail!(
                    "rocexdp run on {} is not ready after {} s",
                    self.host,
                    START.as_secs()
                );
            }
        }
    }

    /// The interface with the host's addresses.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The namespace's name.
    pub fn namespace(&self) -> &str {
        self.namespace.label()
    }

    /// The host.
    pub fn host(&self) -> Host {
        self.host
    }

    /// Runs `rocexdp copy` here.
    ///
    /// # Errors
    /// It failed, took longer than `limit`, or a signal came.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call, all of it told by the demo"
    )]
    pub fn copy(
        &self,
        lab: &Lab,
        file: &Path,
        to: &Self,
        name: &str,
        token: &Path,
        limit: Duration,
        cancel: &Cancel,
    ) -> anyhow::Result<CopyReport> {
        let target = format!("{}:{name}", to.host.ipv4());
        out::line(format_args!(
            "$ rocexdp --netns {} copy {} {target} --token-file {}",
            self.namespace(),
            file.display(),
            token.display()
        ))?;
        let mut command = Command::new(own_program()?);
        command
            .arg("copy")
            .arg(file)
            .arg(&target)
            .arg("--token-file")
            .arg(token)
            .arg("--json");
        lab.spawn_in(self.host, &mut command)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting rocexdp copy")?;
        let mut copy = Offspring::new(child, "rocexdp copy".to_owned());
        let mut output = copy
            .child()
            .stdout
            .take()
            .context("no output of rocexdp copy")?;
        let reading = thread::spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).map(|_| text)
        });
        let status = copy.wait(limit, cancel)?;
        if !status.success() {
            bail!("rocexdp copy ended with {status}");
        }
        let text = reading.join().ok().context("reading the copy's result")??;
        serde_json::from_str(&text).context("the copy's result")
    }

    /// This host's QPs, from its BPF maps.
    ///
    /// # Errors
    /// The daemon is gone, or the maps can't be read.
    pub fn qps(&self) -> anyhow::Result<Vec<QpView>> {
        let interface = &self.interface;
        self.namespace
            .run(|| MapsView::of_interface(interface))?
            .map(|maps| maps.qps())
    }

    /// Ends the daemon.
    ///
    /// # Errors
    /// It did not end by itself without error.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.daemon
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .stop()
    }
}

/// Hands each line of a child's output to `each`, on a thread that ends with the child.
fn relay(
    from: impl Read + Send + 'static,
    mut each: impl FnMut(String) + Send + 'static,
) -> anyhow::Result<()> {
    thread::Builder::new()
        .name("relay".to_owned())
        .spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                each(line);
            }
        })
        .context("starting a thread")?;
    Ok(())
}
