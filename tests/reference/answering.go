// Package answering answers questions, one JSON object a line: {"area", "input"} with {"answer"}, or with {"refused"}
// where the question cannot be asked, or the original panics.
package answering

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// Answer is how one area is answered: by the original's own functions.
type Answer func(input json.RawMessage) (any, error)

var areas = map[string]Answer{}

// Area says who answers an area; files of this program do in their init functions.
func Area(name string, answer Answer) { areas[name] = answer }

// Of decodes the input of a question.
func Of[T any](answer func(T) (any, error)) Answer {
	return func(input json.RawMessage) (any, error) {
		var question T
		if err := json.Unmarshal(input, &question); err != nil {
			return nil, err
		}
		return answer(question)
	}
}

type question struct {
	Area  string          `json:"area"`
	Input json.RawMessage `json:"input"`
}

type reply struct {
	Answer  any    `json:"answer"`
	Refused string `json:"refused,omitempty"`
}

// Serve answers until there are no more questions. What the original prints goes to standard error.
func Serve() {
	out := bufio.NewWriter(os.Stdout)
	os.Stdout = os.Stderr
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		text, err := json.Marshal(replyTo(line))
		if err != nil {
			text, _ = json.Marshal(reply{Refused: err.Error()})
		}
		out.Write(append(text, '\n'))
		out.Flush()
	}
}

func replyTo(line []byte) (found reply) {
	defer func() {
		if problem := recover(); problem != nil {
			found = reply{Refused: fmt.Sprintf("panic: %v", problem)}
		}
	}()
	var asked question
	if err := json.Unmarshal(line, &asked); err != nil {
		return reply{Refused: err.Error()}
	}
	answer, known := areas[asked.Area]
	if !known {
		return reply{Refused: "nobody answers " + asked.Area}
	}
	answered, err := answer(asked.Input)
	if err != nil {
		return reply{Refused: err.Error()}
	}
	return reply{Answer: answered}
}
