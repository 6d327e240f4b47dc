//! `kimi-cli chat`.

mod answer;
mod conversation;
mod lines;
mod settings;
mod view;

use std::io::{IsTerminal, Write, stderr, stdin, stdout};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use console::style;
use kimi_model::prefix::Storing;
use kimi_model::{
    Engine, Error, FinishReason, GenerateOptions, Generation, ModelFiles, PrefixCache, Transcript,
};
use kimi_text::Tokenizer;
use kimi_text::chat::{ChatFormat, ChatOptions, Message};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use self::answer::Answer;
use self::conversation::{Conversation, Prompt, name_of};
use self::settings::Settings;
use self::view::{TextView, View};
use crate::args::{ChatArgs, When};
use crate::exit::{Exit, Usage};
use crate::status::bytes;
use crate::{interrupt, sampling, source, text};

const HELP: &str = "\
/help            this list
/reset           forget the conversation, not the system message
/system TEXT     begin anew with this system message; without TEXT with none
/tools FILE      declare the tools of a JSON file; `none` takes them back; without FILE they are listed
/result TEXT     what a called tool returned
/set NAME VALUE  change a setting, like temperature; without NAME all are listed
/save FILE       write the conversation as JSON
/load FILE       go on with a conversation that was saved
/stats           position, bytes and times
/quit            leave; so does Ctrl-D
A line that ends in \\ goes on in the next one. Ctrl-C stops an answer, a second one the program.";

pub(crate) fn run(args: &ChatArgs) -> anyhow::Result<Exit> {
    interrupt::install()?;
    let dir = args.model.as_deref();
    let model = source::model(dir, args.engine.io, args.engine.ram)?;
    let tokenizer = source::require_tokenizer(dir)?;
    let format = match dir {
        Some(dir) => ModelFiles::open(dir)?.chat_format(&tokenizer),
        None => ChatFormat::recognise(&tokenizer, Some(&model.config().model_type), None),
    };
    let format = format.map_err(|error| Usage(format!("{error}; `run` continues raw text")))?;
    let mut options = args.engine.options();
    options.positions = args.engine.context.min(model.config().max_position_embeddings);
    options.read = source::read_settings(&model, args.engine.io, args.engine.ram)?;
    let mut generate = sampling::options(dir, &args.sampling, model.config())?;
    generate.max_tokens = args.max_tokens;
    let prefixes = args.prefix.open(&mut generate)?;
    let mut engine = Engine::new(model, &options)?;
    end_with_the_turn(&mut generate, &engine, format, &tokenizer)?;
    let mut rendering = ChatOptions::default();
    rendering.thinking = !args.no_think;
    rendering.effort = args.effort.or_else(|| format.default_effort()).filter(|_| rendering.thinking);

    let mut conversation = Conversation::new(format, args.system.clone(), &engine)?;
    if let Some(file) = &args.tools {
        conversation.load_tools(file)?;
    }
    let settings = Settings { generate, chat: rendering, reasoning: args.reasoning };
    let prefixes = prefixes.as_ref();
    let mut chat = Chat { args, tokenizer: &tokenizer, settings, engine: &mut engine, prefixes };
    if let Some(once) = &args.once {
        let message = if once == "-" { text::read_stdin(false)? } else { once.clone() };
        return Ok(match chat.say(&mut conversation, vec![Message::user(message)])? {
            FinishReason::Cancelled => Exit::Interrupted,
            _ => Exit::Ok,
        });
    }
    if args.jsonl {
        return lines::talk(&mut chat, &mut conversation);
    }
    chat.talk(&mut conversation)
}

/// The end of a turn ends an answer, whatever the files of the model say.
fn end_with_the_turn(
    options: &mut GenerateOptions,
    engine: &Engine,
    format: ChatFormat,
    tokenizer: &Tokenizer,
) -> anyhow::Result<()> {
    let end = format.end_of_turn();
    let id = tokenizer.special_id(end).with_context(|| format!("the tokenizer has no {end}"))?;
    let ids = options.eos_token_ids.get_or_insert_with(|| engine.model().config().eos_token_ids.clone());
    if !ids.contains(&id.0) {
        ids.push(id.0);
    }
    Ok(())
}

/// What all turns share.
struct Chat<'a> {
    args: &'a ChatArgs,
    tokenizer: &'a Tokenizer,
    settings: Settings,
    engine: &'a mut Engine,
    prefixes: Option<&'a PrefixCache>,
}

/// What an answer took.
struct Turn {
    finish: FinishReason,
    prompt_tokens: usize,
    computed_tokens: usize,
    reused_tokens: usize,
    generated_tokens: usize,
    seconds_per_token: Option<f64>,
    bytes_read: u64,
}

impl Chat<'_> {
    /// Reads lines until the end.
    fn talk(&mut self, conversation: &mut Conversation) -> anyhow::Result<Exit> {
        let mut editor = DefaultEditor::new().context("the terminal cannot be read")?;
        let interactive = stdin().is_terminal();
        if interactive && !self.args.verbosity.quiet {
            let name = source::name(self.args.model.as_deref());
            eprintln!("{name}, {}; /help lists what else can be said", conversation.format_name());
        }
        let mut leaving = false;
        loop {
            match read_message(&mut editor, interactive) {
                Ok(message) if message.trim().is_empty() => {}
                Ok(message) => {
                    leaving = false;
                    if let Some(command) = message.trim().strip_prefix('/') {
                        if !interrupt::turn(|| self.command(conversation, command)) {
                            return Ok(Exit::Ok);
                        }
                    } else if let Err(error) =
                        interrupt::turn(|| self.say(conversation, vec![Message::user(message)]))
                    {
                        // The conversation is as before this message, and may go on with a shorter one.
                        eprintln!("error: {error:#}");
                    }
                }
                Err(ReadlineError::Eof) => return Ok(Exit::Ok),
                Err(ReadlineError::Interrupted) if leaving => return Ok(Exit::Interrupted),
                Err(ReadlineError::Interrupted) => {
                    leaving = true;
                    eprintln!("Ctrl-C again or /quit leaves");
                }
                Err(error) => return Err(error).context("the terminal cannot be read"),
            }
        }
    }

    /// Runs a command; false ends the program.
    fn command(&mut self, conversation: &mut Conversation, command: &str) -> bool {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        let done = match name {
            "quit" | "exit" => return false,
            "help" => {
                println!("{HELP}");
                Ok(())
            }
            "reset" => conversation.reset(self.engine),
            "system" => {
                let text = Some(rest.to_owned()).filter(|text| !text.is_empty());
                conversation.set_system(text, self.engine)
            }
            "tools" => self.tools(conversation, rest),
            "set" => self.set(rest),
            "result" => self.result(conversation, rest),
            "save" | "load" if rest.is_empty() => Err(anyhow::anyhow!("/{name} needs the name of a file")),
            "save" => conversation.save(Path::new(rest)),
            "load" => conversation.load(Path::new(rest), self.engine),
            "stats" => {
                self.stats(conversation);
                Ok(())
            }
            _ => Err(anyhow::anyhow!("/{name} is not known; /help lists what is")),
        };
        if let Err(error) = done {
            eprintln!("error: {error:#}");
        }
        true
    }

    fn stats(&self, conversation: &Conversation) {
        let (position, capacity) = conversation.position();
        let read = bytes(self.engine.bytes_read().total());
        println!("{position} of {capacity} positions, {} messages, {read} read", conversation.len());
    }

    fn tools(&self, conversation: &mut Conversation, rest: &str) -> anyhow::Result<()> {
        match rest {
            "" => {
                let names: Vec<_> = conversation.tools().iter().filter_map(name_of).collect();
                println!("{}", if names.is_empty() { "no tools".to_owned() } else { names.join(", ") });
                Ok(())
            }
            "none" => conversation.set_tools(Vec::new()),
            file => conversation.load_tools(Path::new(file)),
        }
    }

    fn set(&mut self, rest: &str) -> anyhow::Result<()> {
        if rest.is_empty() {
            for (name, value) in self.settings.list() {
                println!("{name:<20} {value}");
            }
            return Ok(());
        }
        let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        self.settings.set(name, value.trim(), self.engine.model().config().vocab_size)
    }

    /// The result of a call; once all are there the model goes on.
    fn result(&mut self, conversation: &mut Conversation, text: &str) -> anyhow::Result<()> {
        let (message, all) = conversation.result(text)?;
        if all {
            self.say(conversation, vec![message])?;
        } else {
            conversation.add(vec![message]);
        }
        Ok(())
    }

    /// Messages and their answer, shown to people.
    fn say(
        &mut self,
        conversation: &mut Conversation,
        messages: Vec<Message>,
    ) -> anyhow::Result<FinishReason> {
        let terminal = stdout().is_terminal();
        let reasoning = match self.settings.reasoning {
            When::Auto => terminal,
            When::Show => true,
            When::Hide => false,
        };
        let quiet = self.args.verbosity.quiet || !stderr().is_terminal();
        let mut view = TextView::new(reasoning, terminal, quiet);
        let turn = self.turn(conversation, messages, &mut view, &|| false)?;
        if self.args.verbosity.verbose || (terminal && !self.args.verbosity.quiet) {
            let Turn { finish, prompt_tokens, computed_tokens, reused_tokens, generated_tokens, .. } = turn;
            let stored = match reused_tokens {
                0 => String::new(),
                count => format!(", {count} from the prefix cache"),
            };
            let pace =
                turn.seconds_per_token.map_or_else(String::new, |seconds| format!(", {seconds:.3} s/token"));
            let (position, capacity) = conversation.position();
            let line = format!(
                "{computed_tokens} of {prompt_tokens} prompt tokens computed{stored}, {generated_tokens} generated{pace}, {} read, {} per computed token, {position} of {capacity} positions, {}",
                bytes(turn.bytes_read),
                bytes(turn.bytes_read / (computed_tokens + generated_tokens).max(1) as u64),
                finish.name()
            );
            writeln!(stderr(), "{}", style(line).dim().for_stderr())?;
        }
        if let Some(call) = conversation.open_call()
            && !self.args.verbosity.quiet
        {
            eprintln!("{} waits for its result: /result TEXT", call.name);
        }
        Ok(turn.finish)
    }

    /// Messages and their answer. Nothing is computed when it is stopped already.
    fn turn(
        &mut self,
        conversation: &mut Conversation,
        messages: Vec<Message>,
        view: &mut dyn View,
        is_stopped: &dyn Fn() -> bool,
    ) -> anyhow::Result<Turn> {
        let read_before = self.engine.bytes_read().total();
        let prompt = conversation.ask(messages, &self.settings.chat, self.tokenizer, self.engine)?;
        let mut answer = Answer::new(conversation, prompt.opening, self.tokenizer, view)?;
        let mut reused = 0;
        let generated = interrupt::cancellable(|cancel| {
            if is_stopped() {
                return Ok(None);
            }
            self.generate(conversation, &prompt, cancel, &mut answer, &mut reused).map(Some)
        });
        let turn = answer.finish();
        let (generation, turn) = match (generated, turn) {
            (Ok(generation), Ok(turn)) => (generation, turn),
            (Err(error), _) => {
                conversation.withdraw(prompt.before);
                return Err(error.into());
            }
            (_, Err(error)) => {
                conversation.withdraw(prompt.before);
                return Err(error);
            }
        };
        let costs = Turn {
            finish: FinishReason::Cancelled,
            prompt_tokens: prompt.tokens,
            computed_tokens: prompt.ids.len() - reused,
            reused_tokens: reused,
            generated_tokens: 0,
            seconds_per_token: None,
            bytes_read: self.engine.bytes_read().total() - read_before,
        };
        let Some(generation) = generation else {
            conversation.withdraw(prompt.before);
            return Ok(Turn { computed_tokens: 0, reused_tokens: 0, ..costs });
        };
        conversation.has_read(&[&*prompt.ids, &*generation.ids].concat());
        conversation.answered(prompt.before, &generation, turn);
        Ok(Turn {
            finish: generation.finish,
            generated_tokens: generation.ids.len(),
            seconds_per_token: generation.decode_seconds_per_token(),
            ..costs
        })
    }

    /// Reads a prompt, as far as it is not stored, and generates the answer.
    fn generate(
        &mut self,
        conversation: &mut Conversation,
        prompt: &Prompt,
        cancel: &AtomicBool,
        answer: &mut Answer<'_>,
        reused: &mut usize,
    ) -> Result<Generation, Error> {
        let (engine, means) = (&mut *self.engine, (Some(self.tokenizer), cancel));
        let mut options = self.settings.generate.clone();
        let (generated, unstored) = if prompt.anew {
            options.checkpoints.extend(self.prefixes.map(|_| prompt.preamble));
            let session = conversation.session();
            if let Some(prefixes) = self.prefixes {
                *reused = prefixes.restore(engine, session, &prompt.ids)?;
            }
            let mut storing = Storing::new(answer, self.prefixes, &prompt.ids[..*reused]);
            // With the tokens that are not computed: they count for the penalties.
            let mut transcript = Transcript::new();
            transcript.give(&prompt.ids);
            let from = (session, &mut transcript);
            (kimi_model::resume(engine, from, &[], &options, means, None, &mut storing), storing.finish())
        } else {
            let before = conversation.read().to_vec();
            let mut storing = Storing::new(answer, self.prefixes, &before);
            let session = conversation.session();
            let generated =
                kimi_model::generate(engine, session, &prompt.ids, &options, means, None, &mut storing);
            (generated, storing.finish())
        };
        if let Some(error) = unstored
            && !self.args.verbosity.quiet
        {
            eprintln!("note: the conversation is not in the prefix cache: {error}");
        }
        generated
    }
}

/// A message of one line, or of several that end in a backslash.
fn read_message(editor: &mut DefaultEditor, interactive: bool) -> Result<String, ReadlineError> {
    let mut message = String::new();
    loop {
        let prompt = match (interactive, message.is_empty()) {
            (false, _) => "",
            (true, true) => "> ",
            (true, false) => ". ",
        };
        let line = editor.readline(prompt)?;
        match line.strip_suffix('\\') {
            Some(part) => {
                message.push_str(part);
                message.push('\n');
            }
            None => {
                message.push_str(&line);
                // A history that does not take a line is no reason to stop.
                let _ = editor.add_history_entry(message.trim());
                return Ok(message);
            }
        }
    }
}
