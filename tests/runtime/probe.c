/* The one program of all test containers.
 *
 * probe pause         waits for SIGTERM: the pod's sandbox, or a container that only has to be there
 * probe exit          ends at once
 * probe WHAT...       tells first thing what it sees, then waits for SIGTERM
 *
 * WHAT is a file ("/proc/self/oom_score_adj"), or "stat:PATH" for a file's type, mode and device numbers. Each gets one
 * line, `WHAT<tab>content`, with newlines as "\n" and the error's text after "!" where it cannot be read. The
 * environment comes behind as `env:NAME<tab>value`, then a line `end`. All goes out in one write.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

extern char **environ;

static char out[1 << 16];
static size_t used;

static void put(const char *text, size_t size) {
	for (size_t at = 0; at < size && used + 2 < sizeof out; at++) {
		if (text[at] == '\n') {
			out[used++] = '\\';
			out[used++] = 'n';
		} else {
			out[used++] = text[at];
		}
	}
}

static void put_text(const char *text) { put(text, strlen(text)); }

static void end_line(void) {
	if (used < sizeof out)
		out[used++] = '\n';
}

static void problem(void) {
	put_text("!");
	put_text(strerror(errno));
}

static void tell_file(const char *path) {
	char text[4096];
	int file = open(path, O_RDONLY);
	ssize_t size = file < 0 ? -1 : read(file, text, sizeof text);
	if (size < 0)
		problem();
	else
		put(text, (size_t)size);
	if (file >= 0)
		close(file);
}

static void tell_stat(const char *path) {
	struct stat found;
	char text[80];
	if (stat(path, &found) != 0) {
		problem();
		return;
	}
	snprintf(text, sizeof text, "%s %o %u:%u",
		 S_ISCHR(found.st_mode) ? "char" : S_ISDIR(found.st_mode) ? "dir" : "file",
		 (unsigned)(found.st_mode & 07777), major(found.st_rdev), minor(found.st_rdev));
	put_text(text);
}

static void ended(int number) {
	(void)number;
	_exit(0);
}

int main(int count, char **words) {
	for (int each = 1; each < count; each++) {
		if (strcmp(words[each], "pause") == 0 || strcmp(words[each], "exit") == 0)
			continue;
		put_text(words[each]);
		put_text("\t");
		if (strncmp(words[each], "stat:", 5) == 0)
			tell_stat(words[each] + 5);
		else
			tell_file(words[each]);
		end_line();
	}
	for (char **variable = environ; *variable != NULL; variable++) {
		char *value = strchr(*variable, '=');
		if (value == NULL)
			continue;
		put_text("env:");
		put(*variable, (size_t)(value - *variable));
		put_text("\t");
		put_text(value + 1);
		end_line();
	}
	put_text("end");
	end_line();
	if (write(1, out, used) < 0)
		return 1;
	if (count > 1 && strcmp(words[1], "exit") == 0)
		return 0;
	signal(SIGTERM, ended);
	for (;;)
		pause();
}
