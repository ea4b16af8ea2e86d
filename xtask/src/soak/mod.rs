//! `cargo xtask soak --minutes N`: the real agent for long, among everything that churns: storms of
//! processes, cgroups that come and go, reloads, a receiver with outages. Its memory, descriptors and
//! CPU time must stay flat, and every window must add up.

mod load;
mod watch;

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;

use crate::process::{self, as_root, cargo, root};

/// How long.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Minutes.
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Run with this agent, as root (used by the task itself).
    #[arg(long, hide = true)]
    agent: Option<std::path::PathBuf>,
}

pub(crate) fn soak(args: &Args) -> Result<()> {
    if let Some(agent) = &args.agent {
        return run(agent, Duration::from_secs_f64(args.minutes * 60.0));
    }
    process::run(&mut cargo(&["build", "--release", "--package", "wattpipe-agent"]))?;
    let mut again = as_root(std::env::current_exe()?);
    again.args(["soak", "--minutes", &args.minutes.to_string(), "--agent"]);
    process::run(again.arg(root().join("target/release/wattpipe")))
}

/// The agent, ended with us.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn config(dir: &Path, receiver: u16, window: &str) -> String {
    format!(
        "sources: {{ebpf: {{window: {window}}}}}\nprocessors: {{delta: {{}}, attribution: \
         {{command_line: true}}, power_model: {{}}}}\nexporters:\n  file: {{path: {}/out.jsonl, \
         rotation: {{max_megabytes: 64, max_backups: 1}}}}\n  otlp_http: {{endpoint: \
         \"http://127.0.0.1:{receiver}\"}}\nservice: {{pipelines: {{p: {{sources: [ebpf], \
         processors: [delta, attribution, power_model], exporters: [file, otlp_http]}}}}}}\n",
        dir.display()
    )
}

fn run(agent: &Path, time: Duration) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("wattpipe-soak-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let receiver = load::Receiver::start()?;
    let file = dir.join("config.yaml");
    fs::write(&file, config(&dir, receiver.port, "1s"))?;
    let log = fs::File::create(dir.join("log"))?;
    let agent = Agent(
        Command::new(agent)
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("starting the agent")?,
    );
    let pid = agent.0.id();
    let stop = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        scope.spawn(|| load::storms(&stop));
        scope.spawn(|| load::cgroups(&stop));
        scope.spawn(|| load::spin_and_talk(&stop));
        let result = watch_it(&agent, pid, time, &dir, &receiver, &file);
        stop.store(true, Ordering::Release);
        result
    });
    let log = fs::read_to_string(dir.join("log"))?;
    let finished = finish(agent);
    let verdict = result.and(finished);
    if verdict.is_ok() {
        ensure!(!log.contains("panicked"), "the agent panicked:\n{log}");
        fs::remove_dir_all(&dir)?;
    } else {
        let tail: Vec<&str> = log.lines().rev().take(20).collect();
        eprintln!("the log's end:");
        tail.iter().rev().for_each(|line| eprintln!("  {line}"));
        eprintln!("everything is kept in {}", dir.display());
    }
    verdict
}

fn finish(mut agent: Agent) -> Result<()> {
    process::run(Command::new("kill").arg(agent.0.id().to_string()))?;
    let end = Instant::now() + Duration::from_secs(15);
    while Instant::now() < end {
        if let Some(status) = agent.0.try_wait()? {
            ensure!(status.success(), "the agent ended with {status}");
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("the agent does not end on SIGTERM")
}

/// Reads what the agent uses and writes, reloads it, and takes its receiver away, until time is up.
fn watch_it(
    agent: &Agent,
    pid: u32,
    time: Duration,
    dir: &Path,
    receiver: &load::Receiver,
    file: &Path,
) -> Result<()> {
    let begun = Instant::now();
    let mut windows = watch::Windows::new(dir.join("out.jsonl"));
    let mut samples = Vec::new();
    let mut second = 0_u64;
    while begun.elapsed() < time {
        thread::sleep(Duration::from_secs(1));
        second += 1;
        windows.check().with_context(|| format!("after {second} s"))?;
        if second.is_multiple_of(5) {
            samples.push(watch::sample(pid).context("the agent is gone")?);
        }
        if second.is_multiple_of(20) {
            let window = if second.is_multiple_of(40) { "1s" } else { "500ms" };
            fs::write(file, config(dir, receiver.port, window))?;
            process::run(Command::new("kill").args(["-HUP", &agent.0.id().to_string()]))?;
        }
        // 30 seconds of answers, 10 of refusals, 10 without anybody there.
        receiver.mood(match second % 50 {
            0..30 => load::Mood::Accepts,
            30..40 => load::Mood::Refuses,
            _ => load::Mood::Gone,
        });
        if second.is_multiple_of(60) {
            println!("{} min: {}", second / 60, watch::line(&samples, &windows));
        }
    }
    println!("{}", watch::line(&samples, &windows));
    println!("answers given: {}", receiver.answers());
    ensure!(windows.count > time.as_secs() / 2, "only {} windows", windows.count);
    ensure!(receiver.answers() > 0, "nothing arrived at the receiver");
    watch::flat(&samples)
}
