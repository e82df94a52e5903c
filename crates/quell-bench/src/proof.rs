//! Shows the result of a proof (`quell prove`): a table for terminals, JSON, and an HTML page.

use crate::report::charts::{self, RatioRow};
use crate::report::{self, Files, close, escape, figure, open, put, section, table};
use crate::result::Host;
use anyhow::ensure;
use quell_model::config::Backend;
use quell_model::{Effect, EffectInterval};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Width of the page's chart, in pixels.
const WIDTH: u32 = 720;

/// What the figures mean, for readers of the page.
const MEANING: &str = "Mean response times as the kernel sees them (from when a tenant that was quiet wakes until all its threads \
    are blocked again) where Quell acts, against those where it does not. Blocks of 5 s in random order, the first second of each \
    left out; the intervals hold at every moment with 95 % (a test by betting).";

/// The result of a proof.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Proved {
    /// The version of this JSON format.
    pub schema: u32,
    /// Quell's version.
    pub quell_version: String,
    /// The machine.
    pub host: Host,
    /// The configuration that was proved.
    pub config: PathBuf,
    /// How Quell acted: through its scheduler, or through stock interfaces.
    pub backend: Backend,
    /// How long the proof was to take, in s.
    pub seconds: f64,
    /// Whether the proof ran for all that time.
    pub complete: bool,
    /// Pairs of blocks that were compared.
    pub pairs: u64,
    /// Pairs of blocks that were not compared: the host was not busy, or too few responses were seen.
    pub void: u64,
    /// The effect on the responses of all tenants of class latency; `null`: too few pairs to say.
    pub responses: Option<EffectInterval>,
    /// The effect on each tenant with enough responses.
    pub tenants: Vec<ProvedTenant>,
}

/// One tenant's part of [`Proved`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProvedTenant {
    /// The tenant's name.
    pub tenant: String,
    /// The effect on the tenant's responses.
    pub responses: EffectInterval,
}

impl Proved {
    /// Builds the result from the agent's estimate.
    ///
    /// # Errors
    /// Where this machine cannot be described, or no period of the agent was completed.
    pub fn new(
        config: &Path,
        length: Duration,
        backend: Backend,
        effect: Option<Effect>,
        complete: bool,
    ) -> anyhow::Result<Proved> {
        let Some(effect) = effect else {
            anyhow::bail!("it ended before a period was complete");
        };
        let tenants = effect.tenants.into_iter();
        Ok(Proved {
            schema: 1,
            quell_version: env!("CARGO_PKG_VERSION").to_string(),
            host: crate::run::describe_host()?,
            config: config.to_path_buf(),
            backend,
            seconds: length.as_secs_f64(),
            complete,
            pairs: effect.pairs,
            void: effect.void,
            responses: effect.responses,
            tenants: tenants
                .map(|(name, responses)| ProvedTenant {
                    tenant: name.to_string(),
                    responses,
                })
                .collect(),
        })
    }

    /// The finding, in a sentence.
    fn answer(&self) -> String {
        match self.responses {
            Some(it) if it.high < 1.0 => format!("Quell helps: responses {}", percent(it)),
            Some(it) if it.low > 1.0 => format!("Quell harms: responses {}", percent(it)),
            Some(it) => format!("no effect shown: responses {}", percent(it)),
            None => "too little was seen to say anything".to_string(),
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.void > 0 {
            let all = self.pairs + self.void;
            notes.push(format!(
                "{} of {all} pairs of blocks said nothing: the host was less than 25 % busy, or too few responses were seen",
                self.void
            ));
        }
        if !self.complete {
            notes.push("ended early".to_string());
        }
        notes
    }
}

/// A ratio and its interval as a change: `−31 % (−35 to −27 %)`.
fn percent(it: EffectInterval) -> String {
    let ratio = report::change(it.ratio);
    format!("{ratio} ({})", report::interval(it.low, it.high))
}

/// Writes the result to the files that the user wants, and the table to the terminal.
///
/// # Errors
/// Where a chart cannot be drawn or a file or standard output cannot be written; and, after all was written,
/// where the proof was cut short.
pub fn deliver(proved: &Proved, json: Option<&Path>, html: Option<&Path>) -> anyhow::Result<()> {
    let files = Files {
        json,
        html,
        ..Files::default()
    };
    let page = html.map(|_| page(proved)).transpose()?;
    let json = serde_json::to_string_pretty(proved)? + "\n";
    files.hand_out(&json, page, |styled| text(proved, styled))?;
    ensure!(proved.complete, crate::workload::Interrupted);
    Ok(())
}

fn text(proved: &Proved, styled: bool) -> String {
    let header = ["tenant", "responses", "not less than", "not more than"];
    let mut rows = table(styled, &header);
    for it in &proved.tenants {
        let change = report::change;
        let of = it.responses;
        rows.add_row([
            it.tenant.clone(),
            change(of.ratio),
            change(of.low),
            change(of.high),
        ]);
    }
    let mut text = format!("\n{} ({} pairs of blocks)\n", proved.answer(), proved.pairs);
    if !proved.tenants.is_empty() {
        text.push_str(&format!("\n{rows}\n"));
    }
    for note in proved.notes() {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

fn page(proved: &Proved) -> anyhow::Result<String> {
    let text = format!(
        "{}. {} s of {}, {} pairs of blocks. Quell {}.",
        report::host(&proved.host),
        proved.seconds,
        proved.config.display(),
        proved.pairs,
        proved.quell_version
    );
    let mut page = open("What Quell does to this host", &text);
    let class = match proved.responses {
        Some(it) if it.high < 1.0 => "better",
        Some(it) if it.low > 1.0 => "worse",
        _ => "",
    };
    let mut body = String::from("<div class=\"cards\">\n");
    put(
        &mut body,
        format_args!(
            "<div class=\"card\"><p>all tenants</p><p class=\"big {class}\">{}</p></div>\n</div>\n",
            escape(&proved.answer())
        ),
    );
    for note in proved.notes() {
        put(
            &mut body,
            format_args!("<p class=\"note\">{}</p>\n", escape(&note)),
        );
    }
    section(&mut page, "Answer", MEANING, &body);
    let row = |label: &str, it: EffectInterval, colour: usize| RatioRow {
        label: label.to_string(),
        ratio: it.ratio,
        interval: Some((it.low, it.high)),
        each: Vec::new(),
        colour: charts::series(colour),
    };
    let all = proved.responses.map(|it| row("all tenants", it, 1));
    let tenants = proved.tenants.iter();
    let tenants = tenants.map(|it| row(&it.tenant, it.responses, 0));
    let rows: Vec<RatioRow> = all.into_iter().chain(tenants).collect();
    if !rows.is_empty() {
        let chart = charts::ratios("Responses", &rows, None, WIDTH)?;
        let text = "A tick is the best guess, a bar what is not ruled out; left of 0 Quell helps.";
        section(
            &mut page,
            "Tenant by tenant",
            text,
            &figure("Responses", &chart),
        );
    }
    close(&mut page);
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_model::{Finding, Lever};

    fn proved(ratio: Option<f64>) -> Proved {
        let interval = |ratio: f64| EffectInterval {
            ratio,
            low: ratio - 0.1,
            high: ratio + 0.1,
        };
        let effect = Effect {
            lever: Lever::All,
            acts: true,
            finding: Finding::Untried,
            since_ns: 0,
            next_ns: 0,
            pairs: 60,
            void: 2,
            responses: ratio.map(interval),
            tenants: vec![("<web>".into(), interval(0.7))],
        };
        let length = Duration::from_secs(600);
        Proved::new(
            Path::new("q.toml"),
            length,
            Backend::SchedExt,
            Some(effect),
            true,
        )
        .unwrap()
    }

    #[test]
    fn the_answer_is_what_the_interval_says() {
        for (ratio, expected) in [
            (Some(0.7), "Quell helps: responses −30 % (−40 to −20 %)"),
            (Some(1.2), "Quell harms: responses +20"),
            (Some(1.02), "no effect shown: responses +2"),
            (None, "too little was seen"),
        ] {
            let text = text(&proved(ratio), false);
            assert!(text.contains(expected), "{text}");
            assert!(text.contains("2 of 62 pairs"), "{text}");
            assert!(text.contains("<web>"), "{text}");
        }
    }

    #[test]
    fn the_page_has_the_plot_and_escapes_names() {
        let page = page(&proved(Some(0.7))).unwrap();
        assert!(
            page.contains("<svg") && page.contains("&lt;web&gt;"),
            "{page}"
        );
        assert!(!page.contains("<web>"));
    }
}
