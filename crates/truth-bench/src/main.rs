//! The truth bench's command line: see the library.
#![forbid(unsafe_code)]

use std::{path::PathBuf, process::ExitCode};

use truth_bench::{
    bench::{run, verdict},
    idle, scenarios,
};

struct Options {
    seed: u64,
    scenario: Option<u32>,
    record: Option<PathBuf>,
    idle: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options { seed: 1, scenario: None, record: None, idle: false };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--idle" {
            options.idle = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{arg}: `{value}` is no number"));
        match arg.as_str() {
            "--seed" => options.seed = number()?,
            "--scenario" => options.scenario = Some(number()? as u32),
            "--record" => options.record = Some(value.into()),
            _ => {
                return Err(format!(
                    "unknown option {arg}: --seed N, --scenario K, --record DIR, --idle"
                ));
            }
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    if options.idle {
        return match idle::table(options.seed) {
            Ok((table, failed)) => {
                println!(
                    "Error of idle joules in %, seed {}\n\n{table}\n{failed} missed",
                    options.seed
                );
                if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(message) => {
                eprintln!("{message}");
                ExitCode::FAILURE
            }
        };
    }
    println!("Share error (TV, %) of active energy, seed {}\n", options.seed);
    println!(
        "| scenario | all by time | E·u, 5 s | P₀ + 5 s | equal idle | exact cycles | exact time | ours | target | | WMAPE ours | best usual | free | idle % (proportional) | trusted | confidence |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let mut failed = 0;
    for scenario in scenarios::all() {
        if options.scenario.is_some_and(|k| k != scenario.number) {
            continue;
        }
        let line = match run(&scenario, options.seed, options.record.as_deref()) {
            Ok(line) => line,
            Err(message) => {
                eprintln!("scenario {}: {message}", scenario.number);
                return ExitCode::FAILURE;
            }
        };
        let (ok, target) = verdict(&scenario, &line);
        failed += u32::from(!ok);
        let [a, b, c, d, e] = line.usual.map(|e| e.share);
        let best_joules = line.usual.iter().map(|e| e.joules).fold(f64::INFINITY, f64::min);
        let idle = line.idle.map_or("–".to_owned(), |i| format!("{i:+.0}"));
        let confidence: Vec<String> = line
            .confidence
            .iter()
            .map(|c| c.map_or("–".to_owned(), |c| format!("{c:.2}")))
            .collect();
        println!(
            "| {} {} | {a:.1} | {b:.1} | {c:.1} | {d:.1} | {e:.1} | {:.1} | **{:.1}** | {target} | {} | {:.1} | {best_joules:.1} | {:.1} | {idle} ({:+.0}) | {:.0} % | {} |",
            scenario.number,
            scenario.name,
            line.exact.share,
            line.ours.share,
            if ok { "ok" } else { "MISSED" },
            line.ours.joules,
            line.learnt.share,
            line.idle_proportional,
            100.0 * line.trusted,
            confidence.join(" "),
        );
        if line.residual > 1e-6 {
            eprintln!("scenario {}: residual {} J", scenario.number, line.residual);
            failed += 1;
        }
    }
    println!("\n{failed} missed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
